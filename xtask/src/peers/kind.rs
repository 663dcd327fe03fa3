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
    /// The side that it is measured against, PyTorch eager.
    pub peer: &'static str,
}

const F32: &str = "torch-f32";
const BF16: &str = "torch-bf16";
const LORA: &str = "torch-lora";

impl Kind {
    const fn rust(name: &'static str, peer: &'static str) -> Self {
        Self {
            name,
            torch: None,
            tuned: false,
            peer,
        }
    }

    const fn torch(
        name: &'static str,
        arguments: &'static [&'static str],
        tuned: bool,
        peer: &'static str,
    ) -> Self {
        Self {
            name,
            torch: Some(arguments),
            tuned,
            peer,
        }
    }

    pub fn is_bf16(&self) -> bool {
        self.peer == BF16
    }

    /// Whether it has weights that it draws for itself.
    pub fn draws_adapter(&self) -> bool {
        self.peer == LORA
    }
}

const KINDS: [Kind; 13] = [
    Kind::rust("ours-f32", F32),
    Kind::rust("ours-bf16", BF16),
    Kind::rust("ours-lora", LORA),
    Kind::rust("candle", F32),
    Kind::torch(F32, &[], false, F32),
    Kind::torch("torch-f32-malloc", &[], true, F32),
    Kind::torch("torch-f32-compile", &["compile"], true, F32),
    Kind::torch("torch-f32-checkpointing", &["checkpointing"], false, F32),
    Kind::torch(LORA, &["lora"], false, LORA),
    Kind::torch(BF16, &["bf16"], false, BF16),
    Kind::torch("torch-bf16-malloc", &["bf16"], true, BF16),
    Kind::torch("torch-bf16-compile", &["bf16", "compile"], true, BF16),
    Kind::torch(
        "torch-bf16-checkpointing",
        &["bf16", "checkpointing"],
        false,
        BF16,
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
