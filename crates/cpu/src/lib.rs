//! CPU kernels on slices, the buffer pool and the trait [`FusedOps`].

// Lane loops index several arrays side by side; zips of them hide the arithmetic.
#![allow(clippy::needless_range_loop)]

mod check;
mod fused;
mod kernels;
mod par;
pub mod pool;
pub mod reference;
mod simd;
mod storage;

pub use fused::{AdamWParams, AttentionParams, CrossEntropyParams, FusedOps, RngKey, View, Write};
pub use simd::isa;
