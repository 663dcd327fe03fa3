//! What two variants may differ by, as relative L2 differences.
//!
//! In f32, sums in another order are within 1e-4, what the gradients of the golden cases are held to as well. A 16-bit
//! precision rounds the output of each module, by up to its unit roundoff `u` (2^-8 for bf16, 2^-11 for fp16). Such
//! errors are independent of each other and add up as a random walk does: after `n` roundings one after the other they
//! are in the order of `u sqrt(n)`. The bound is twice that. Measured on models of 2 to 24 blocks, new and trained, errors
//! were a half to an eighth of the bound.
//!
//! Weights that have been trained far may be more sensitive: an attention that has become sharp makes of a small change of
//! its scores a large one of gradients. So the first variant makes its step a second time with every weight changed by
//! `u`, at random in its sign. Rounding changes activations and gradients as well as weights, each in a way of its own: what
//! it did to the gradients of a model trained for 300 steps at 5e-3 was up to 2.4 times as much. Four times is allowed.

use serde::Serialize;
use tt_tensor::Precision;

/// A bound that grows with the roundings behind a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// What is allowed in any case: all there is in f32, and for what is f32 in any precision.
    pub least: f64,
    /// What is allowed besides, times the square root of the number of module outputs, and gradients of them, that have
    /// been computed so far.
    pub growth: f64,
}

/// Gradients of weights count as having at least this share of the norm of all: some are zero but for rounding.
pub(super) const NOISE_FLOOR: f64 = 1e-2;

/// Times what a change of all weights by the unit roundoff does to a tensor.
pub(super) const SENSITIVITY: f64 = 4.0;

impl Tolerance {
    /// The same for all tensors.
    pub fn uniform(relative: f64) -> Self {
        Self {
            least: relative,
            growth: 0.0,
        }
    }

    /// Of two variants in these precisions.
    pub fn between(a: Precision, b: Precision) -> Self {
        Self {
            least: 1e-4,
            growth: 2.0 * f64::max(unit_roundoff(a), unit_roundoff(b)),
        }
    }

    /// For a tensor that `roundings` outputs of modules are behind.
    pub fn allowed(&self, roundings: usize) -> f64 {
        self.least.max(self.growth * (roundings as f64).sqrt())
    }
}

/// Half the distance from 1 to the next number, of what activations are kept in; what f32 has is within `least`.
pub(super) fn unit_roundoff(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 2f64.powi(-8),
        Precision::F16 => 2f64.powi(-11),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarser_precision_decides_and_bounds_grow_as_a_random_walk() {
        let f32s = Tolerance::between(Precision::F32, Precision::F32);
        assert_eq!((f32s.allowed(0), f32s.allowed(10_000)), (1e-4, 1e-4));
        let mixed = Tolerance::between(Precision::F16, Precision::Bf16);
        assert_eq!(mixed, Tolerance::between(Precision::Bf16, Precision::F32));
        assert_eq!(mixed.allowed(0), 1e-4);
        assert_eq!(mixed.allowed(4), 4.0 / 256.0);
        assert_eq!(Tolerance::uniform(0.5).allowed(100), 0.5);
    }
}
