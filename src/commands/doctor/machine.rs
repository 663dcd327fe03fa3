//! The machine: processor, memory, disk.

use super::{Report, State};

pub(super) fn rows(report: &mut Report) {
    const MACHINE: &str = "machine";
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    report.row(MACHINE, "system", State::Ok, system);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let text = format!("{threads} threads{}", vector_instructions());
    report.row(MACHINE, "processor", State::Ok, text);
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        let gib = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
            Some(kib / (1 << 20) as f64)
        };
        if let (Some(total), Some(free)) = (gib("MemTotal:"), gib("MemAvailable:")) {
            let text = format!("{total:.1} GiB, {free:.1} GiB available");
            report.row(MACHINE, "memory", State::Ok, text);
        }
    }
    if let Ok(disk) = rustix::fs::statvfs(".") {
        let gib = (disk.f_bavail * disk.f_frsize) as f64 / (1 << 30) as f64;
        let text = format!("{gib:.1} GiB free in the current folder");
        report.row(MACHINE, "disk", State::Ok, text);
    }
}

/// Those that kernels look for.
fn vector_instructions() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let known = [
            ("avx2", has!("avx2")),
            ("fma", has!("fma")),
            ("avx512f", has!("avx512f")),
            ("avx512bf16", has!("avx512bf16")),
        ];
        let names = known.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
        format!(", {}", names.collect::<Vec<_>>().join(" "))
    }
    #[cfg(not(target_arch = "x86_64"))]
    String::new()
}
