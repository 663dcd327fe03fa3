//! Project chores. `cargo xtask check` is what a change must pass; CI runs nothing else.

mod check;
mod kernels;
mod layers;
mod peers;
mod roofline;
mod sdk;
mod source;

use std::path::Path;
use std::process::{Command, ExitCode};

use check::Extent;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  check           formatting, lints, tests (also of generated docs) and documentation links, with a
                  table of what each took
  check --full    the same with the tests that are slow and rarely red: before a change to crates/tpu,
                  crates/tensor or crates/cpu is called done
  sdk             install the vendor's emulator of Sophgo TPUs, for tests and device=tpu
  sdk --wheel F   the same from a package that is here already
  kernels --chip bm1690|bm1684x|bm1690-emulator|bm1684x-emulator [--cc COMPILER] [--out FILE]
                  compile the kernels of a TPU for it, and check that it can load them
  roofline        print what the kernels of a TPU move and compute in a training step of Qwen2-0.5B, and the
                  time that it takes at the chip's published rates
  roofline --counts F
                  the same of what ran on the emulator with TT_TPU_COUNTS=F
  kernels --add FILE.c [--add FILE.c].. [--flag FLAG].. [--chip NAME] [--cc COMPILER] [--out FILE]
                  the same for kernels of your own (docs/tpu-kernels.md); without --chip for the emulator
  bench-peers [--shapes s/m/l] [--sides NAME,..] [--steps N] [--isa NAME] [--out FILE]
                  training steps of ours, PyTorch's and candle's in turn, with the memory of each; writes a
                  dated table to benchmarks/
  layers          print which file of src/ uses which; fail on a circle, or on a crate that uses a
                  higher layer
  mutants [ARG].. plant faults in what must not be wrong unseen (.cargo/mutants.toml), and list those that
                  no test of its crate, nor of those that use it, finds; needs cargo-mutants, and hours
                  for all (docs/testing.md): `mutants -f FILE` is of one file
  docs            write what is generated: docs/configuration.md, docs/config.schema.json
  docs --check    fail if they are not what would be written";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => with_emulator(Extent::Usual),
        ["check", "--full"] => with_emulator(Extent::Full),
        ["sdk"] => sdk::install(None),
        ["sdk", "--wheel", wheel] => sdk::install(Some(wheel.as_ref())),
        ["kernels", ref arguments @ ..] => kernels::make(arguments),
        ["roofline", ref arguments @ ..] => roofline::print(arguments),
        ["bench-peers", ref arguments @ ..] => peers::compare(arguments),
        ["layers"] => layers::check(root()).map(|files| print!("{files}")),
        ["mutants", ref arguments @ ..] => check::mutants(arguments),
        ["docs"] => check::docs(true),
        ["docs", "--check"] => check::docs(false),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// The cargo that runs this program, as if it were typed: some build scripts of dependencies look at the package of the
/// program that starts cargo, and would be built again after `cargo xtask`, with all that uses them.
fn cargo_command() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_MANIFEST_", "CARGO_PKG_"];
        if let Some(text) = name.to_str()
            && of_package.iter().any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command
}

fn with_emulator(extent: Extent) -> anyhow::Result<()> {
    // Without it the TPU's tests say that they were skipped; with CI set they fail.
    if let Err(problem) = sdk::install(None) {
        eprintln!("== no emulator of the TPU: {problem:#}");
    }
    check::check(extent)
}
