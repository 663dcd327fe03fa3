//! Rotary tables for a model's positions.
//!
//! Frequencies are `theta^(-2i/D)`, f32, as Hugging Face computes them.

use tt_tensor::{Device, Tensor, fused};

use crate::error::{Error, Result};

/// Tables of cosines and sines, `[positions, D/2]` each.
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Frequencies of the pairs of a head of `head_dim`.
    pub fn inv_freq(head_dim: usize, theta: f64) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32))
            .collect()
    }

    /// Tables for positions `0..positions`. Error: more positions than the model was made for.
    pub fn new(inv_freq: &[f32], positions: usize, max: usize, device: Device) -> Result<Self> {
        if positions > max {
            return Err(Error::TooLong { positions, max });
        }
        let (cos, sin) = fused::rope_tables(inv_freq, positions, device)?;
        Ok(Self { cos, sin })
    }

    /// Rotates `x` `[B, T, H, D]` by `position_ids` `[B, T]`.
    pub fn apply(&self, x: &Tensor, position_ids: &Tensor) -> Result<Tensor> {
        Ok(fused::rope(x, &self.cos, &self.sin, position_ids)?)
    }
}
