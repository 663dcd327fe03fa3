//! CPU kernels on slices, the buffer pool and the trait [`FusedOps`].

mod fused;

pub use fused::{
    AdamWParams, AttentionParams, CrossEntropyParams, FusedOps, RngKey, View, Write,
};
