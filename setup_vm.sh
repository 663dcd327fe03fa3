#!/usr/bin/env bash
# Prepares a fresh machine: checks Rust, builds the binary, installs the emulator of the TPU, stores the tokens where their tools look.
#
#   ./setup_vm.sh [--mpi] [HF_TOKEN] [WANDB_TOKEN]
#
# With --mpi it also installs Open MPI and builds the binary with it, for runs of several processes: see docs/multi-host.md.
# Either token may be absent or empty (''); what is stored already is then left as it is. Running it again changes nothing.
# With WANDB_TOKEN runs are sent to Weights & Biases: see docs/tracking.md.
# HF_TOKEN goes to ${HF_HOME:-~/.cache/huggingface}/token, WANDB_TOKEN to the entry for api.wandb.ai in ~/.netrc.
set -euo pipefail

main() {
    cd "$(dirname "${BASH_SOURCE[0]}")"
    local features=()
    if [[ "${1:-}" == --mpi ]]; then
        shift
        features=(--features mpi)
        install_mpi
    fi
    check_rust
    cargo build --release "${features[@]}"
    cargo xtask sdk || echo "no emulator of the TPU: device=tpu will not run here; the CPU needs nothing of it"
    if [[ -n "${1:-}" ]]; then store_hf_token "$1"; else echo "no Hugging Face token given: only public repositories can be read"; fi
    if [[ -n "${2:-}" ]]; then store_wandb_token "$2"; fi
    if [[ -z "${2:-}" ]]; then echo "no Weights & Biases token: runs are logged to disk only"; fi
    echo
    echo "ready: target/release/tpu-train +model=qwen2 +trainer=lm lr=5e-5"
}

# What the crate `mpi` is built with, and what starts ranks. An MPI that is there already is left as it is.
install_mpi() {
    local missing=()
    command -v mpicc >/dev/null || missing+=(libopenmpi-dev)
    command -v mpirun >/dev/null || missing+=(openmpi-bin)
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || [[ -n "${LIBCLANG_PATH:-}" ]] || missing+=(libclang-dev)
    if [[ ${#missing[@]} == 0 ]]; then
        echo "MPI is there: $(mpirun --version | head -n1)"
        return
    fi
    if ! command -v apt-get >/dev/null; then
        echo "error: --mpi needs ${missing[*]} or what your system calls them, and there is no apt-get; install them and run this again" >&2
        exit 1
    fi
    local sudo=()
    if [[ $EUID -ne 0 ]]; then sudo=(sudo); fi
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
    echo "installed ${missing[*]}"
}

check_rust() {
    if ! command -v cargo >/dev/null; then
        echo "error: cargo not found; install Rust from https://rustup.rs and run this again" >&2
        exit 1
    fi
    local need have
    need=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    if [[ "$(printf '%s\n%s\n' "$need" "$have" | sort -V | head -n1)" != "$need" ]]; then
        echo "error: Rust $need or newer is needed, found $have; run: rustup update stable" >&2
        exit 1
    fi
}

store_hf_token() {
    local home="${HF_HOME:-$HOME/.cache/huggingface}"
    mkdir -p "$home"
    write_private "$home/token" <<<"$1"
    echo "stored the Hugging Face token in $home/token"
}

# Replaces the entry for api.wandb.ai, on one line or spread over several, and keeps every other entry.
# Ours goes first: nothing after a `default` entry is ever looked at.
store_wandb_token() {
    local netrc="$HOME/.netrc"
    {
        printf 'machine api.wandb.ai login user password %s\n' "$1"
        if [[ -f "$netrc" ]]; then
            awk '
                { for (i = 1; i <= NF; i++) if ($i == "machine" || $i == "default") ours = ($i == "machine" && $(i + 1) == "api.wandb.ai") }
                !ours
            ' "$netrc"
        fi
    } | write_private "$netrc"
    echo "stored the Weights & Biases token in $netrc"
}

# Writes its input to the file by way of a rename, so that a crash leaves the old file or the new one; mode 600.
write_private() {
    local temporary
    temporary=$(mktemp "$1.XXXXXX")
    cat >"$temporary"
    chmod 600 "$temporary"
    mv "$temporary" "$1"
}

main "$@"
