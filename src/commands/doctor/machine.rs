//! The machine: processor, memory, disk.

use tt_tensor::Device;

use super::findings::{Findings, State};

pub(super) fn rows(findings: &mut Findings) {
    const MACHINE: &str = "machine";
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    findings.row(MACHINE, "system", State::Ok, system);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let kernels = Device::Cpu.instruction_set();
    let instructions = vector_instructions();
    let text = format!("{threads} threads{instructions}, kernels for {kernels}");
    findings.row(MACHINE, "processor", State::Ok, text);
    let memory = (
        tt_metrics::memory_bytes(),
        tt_metrics::available_memory_bytes(),
    );
    if let (Some(total), Some(free)) = memory {
        let text = format!("{:.1} GiB, {:.1} GiB available", gib(total), gib(free));
        findings.row(MACHINE, "memory", State::Ok, text);
    }
    if let Ok(disk) = rustix::fs::statvfs(".") {
        let free = gib(disk.f_bavail * disk.f_frsize);
        let text = format!("{free:.1} GiB free in the current folder");
        findings.row(MACHINE, "disk", State::Ok, text);
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 30) as f64
}

/// Those that kernels look for.
fn vector_instructions() -> String {
    let found = tt_metrics::cpu_features();
    let names = ["avx2", "fma", "avx512f", "avx512bf16"].into_iter();
    let names: Vec<_> = names.filter(|name| found.contains(name)).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(", {}", names.join(" "))
    }
}
