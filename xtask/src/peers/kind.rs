//! The sides that can be compared.

use anyhow::{Context, Result};

/// Settings of glibc by which a process keeps freed memory for reuse.
pub const MALLOC: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
];

/// A side that can be asked for.
pub struct Kind {
    pub name: &'static str,
    /// Arguments of `torch_side.py`; `None`: a side of `tt-benchmarks`.
    pub torch: Option<&'static [&'static str]>,
    /// Whether it runs with [`MALLOC`].
    pub tuned: bool,
    pub is_bf16: bool,
}

impl Kind {
    const fn rust(name: &'static str, is_bf16: bool) -> Self {
        Self {
            name,
            torch: None,
            tuned: false,
            is_bf16,
        }
    }

    const fn torch(
        name: &'static str,
        arguments: &'static [&'static str],
        tuned: bool,
        is_bf16: bool,
    ) -> Self {
        Self {
            name,
            torch: Some(arguments),
            tuned,
            is_bf16,
        }
    }
}

const KINDS: [Kind; 13] = [
    Kind::rust("ours-f32", false),
    Kind::rust("ours-bf16", true),
    Kind::rust("ours-lora", false),
    Kind::rust("candle", false),
    Kind::torch("torch-f32", &[], false, false),
    Kind::torch("torch-f32-malloc", &[], true, false),
    Kind::torch("torch-f32-compile", &["compile"], true, false),
    Kind::torch("torch-f32-checkpointing", &["checkpointing"], false, false),
    Kind::torch("torch-lora", &["lora"], false, false),
    Kind::torch("torch-bf16", &["bf16"], false, true),
    Kind::torch("torch-bf16-malloc", &["bf16"], true, true),
    Kind::torch("torch-bf16-compile", &["bf16", "compile"], true, true),
    Kind::torch(
        "torch-bf16-checkpointing",
        &["bf16", "checkpointing"],
        false,
        true,
    ),
];

/// The side of that name. Error: there is none, with the names there are.
pub fn named(name: &str) -> Result<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.name == name)
        .with_context(|| {
            let all: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            format!("`{name}`: no side; they are {}", all.join(", "))
        })
}
