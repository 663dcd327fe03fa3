//! Where and from what a run was made: for its folder, so that a result can be traced.

use std::{env, fs, process::Command, thread};

use serde_json::{Value, json};

/// Versions, host, processor, git commit of the working directory, command line. What cannot be
/// found out is null.
pub fn environment() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "rustc": env!("TT_RUSTC_VERSION"),
        "target": env!("TT_TARGET"),
        "args": env::args_os().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        "working_dir": env::current_dir().ok(),
        "git": git(),
        "host": host_name(),
        "cpu": {
            "model": cpu_model(),
            "num_cores": thread::available_parallelism().ok(),
            "features": cpu_features(),
        },
        "memory_bytes": memory_bytes(),
    })
}

/// The machine's memory; `None` where the system does not tell.
pub fn memory_bytes() -> Option<u64> {
    proc_kb("/proc/meminfo", "MemTotal:")
}

/// What of it new programs could have; `None` where the system does not tell.
pub fn available_memory_bytes() -> Option<u64> {
    proc_kb("/proc/meminfo", "MemAvailable:")
}

/// The memory that this process holds now; `None` where the system does not tell.
pub fn rss_bytes() -> Option<u64> {
    proc_kb("/proc/self/status", "VmRSS:")
}

/// The most memory this process has held so far; `None` where the system does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    proc_kb("/proc/self/status", "VmHWM:")
}

/// The instruction sets that decide which kernels run, and so how sums are rounded. Two machines
/// with equal lists compute the same bits.
pub fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! detect {
        ($detect:ident: $($feature:tt)*) => {
            $(if std::arch::$detect!($feature) {
                found.push($feature);
            })*
        };
    }
    #[cfg(target_arch = "x86_64")]
    detect!(is_x86_feature_detected: "avx" "fma" "avx2" "f16c" "avx512f" "avx512bw" "avx512vl"
        "avx512vnni" "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    detect!(is_aarch64_feature_detected: "neon" "fp16" "bf16" "sve");
    found
}

fn git() -> Value {
    let run = |args: &[&str]| {
        let output = Command::new("git")
            .args(args)
            .env("GIT_OPTIONAL_LOCKS", "0") // only looking
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = run(&["rev-parse", "HEAD"]) else {
        return Value::Null;
    };
    let changes = run(&["status", "--porcelain", "--untracked-files=no"]);
    json!({ "commit": commit, "is_dirty": changes.map(|c| !c.is_empty()) })
}

fn host_name() -> Option<String> {
    #[cfg(unix)]
    {
        let name = rustix::system::uname();
        Some(name.nodename().to_string_lossy().into_owned())
    }
    #[cfg(not(unix))]
    {
        env::var("COMPUTERNAME").ok()
    }
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The value of a line `KEY   123 kB`, in bytes.
fn proc_kb(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|l| l.strip_prefix(key))?;
    let kb: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kb.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn peak_memory_follows_an_allocation() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let num_bytes = block.len() as u64;
        assert!(peak_rss_bytes().unwrap() >= num_bytes);
        drop(block);
        assert!(
            peak_rss_bytes().unwrap() >= num_bytes,
            "a peak does not fall"
        );
    }

    #[test]
    fn environment_tells_versions_processor_and_command() {
        let environment = environment();
        assert_eq!(environment["version"], env!("CARGO_PKG_VERSION"));
        assert!(
            environment["rustc"]
                .as_str()
                .unwrap()
                .starts_with("rustc 1.")
        );
        assert!(environment["cpu"]["num_cores"].as_u64().unwrap() >= 1);
        assert!(!environment["args"][0].as_str().unwrap().is_empty());
        if cfg!(unix) {
            assert!(!environment["host"].as_str().unwrap().is_empty());
        }
    }
}
