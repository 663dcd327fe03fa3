//! Chance, for waits and names.

use std::hash::{BuildHasher, Hasher};

/// Between 0 and 1. The standard library's source of chance: each hasher has keys of its own.
pub(super) fn chance() -> f64 {
    let bits = std::hash::RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
