//! What is told of the machine that was measured on.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

pub fn has_bf16() -> bool {
    cpu_flags().iter().any(|flag| flag.ends_with("_bf16"))
}

/// The processor's instruction sets that products are made for.
pub fn cpu_flags() -> Vec<String> {
    let known = ["avx2", "avx512f", "avx512_bf16", "amx_bf16"];
    let flags = cpu_field("flags");
    let flags = flags.split(' ').filter(|flag| known.contains(flag));
    flags.map(str::to_owned).collect()
}

/// What Linux says of the processor; empty elsewhere.
pub fn cpu_field(name: &str) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = cpu.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(field, _)| field.trim_end() == name);
    found.map_or(String::new(), |(_, value)| value.to_owned())
}

/// PyTorch's and transformers' versions.
pub fn versions(python: Option<&Path>) -> Result<String> {
    let Some(python) = python else {
        return Ok("no PyTorch".to_owned());
    };
    let asked = Command::new(python).args(["-c", VERSIONS]).output()?;
    Ok(String::from_utf8(asked.stdout)?.trim().to_owned())
}

const VERSIONS: &str = "import torch, transformers
print(f'PyTorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads')";

pub fn today() -> Result<String> {
    let date = Command::new("date").arg("+%Y-%m-%d").output()?;
    Ok(String::from_utf8(date.stdout)?.trim().to_owned())
}
