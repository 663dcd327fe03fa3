//! What matrix products and attention are computed in.
//!
//! Weights, their gradients, optimizer state, norms, softmax and the loss are f32 in every precision; sums of products
//! are f32 too. A 16-bit precision rounds the operands of products, and keeps the activations between
//! them rounded, in half the bytes.

use candle_core::DType;

/// The precision of a forward pass and of its gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Single precision throughout.
    #[default]
    F32,
    /// 8 bits of mantissa and the range of f32.
    Bf16,
    /// 11 bits of mantissa and a range of 6e-8 to 65504: gradients need loss scaling.
    F16,
}

impl Precision {
    /// The dtype of activations that a product reads or writes.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        }
    }
}
