//! CPU kernels on slices, the buffer pool and the trait [`FusedOps`].

// Lane loops index several arrays side by side; zips of them hide the arithmetic.
#![allow(clippy::needless_range_loop)]

mod check;
mod fused;
mod kernels;
pub mod pool;
pub mod reference;
mod storage;

pub use fused::{AdamWParams, AttentionParams, CrossEntropyParams, FusedOps, RngKey, View, Write};

/// The instruction set that the kernels use on this machine. Results are the same bits for any number of
/// threads, but may differ between instruction sets.
pub fn isa() -> &'static str {
    match pulp::Arch::new() {
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(_) => "avx512",
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(_) => "avx2",
        #[cfg(target_arch = "aarch64")]
        pulp::Arch::Neon(_) => "neon",
        _ => "scalar",
    }
}
