//! Rotary position embedding of a model: its frequencies, and tables made once for as many positions as needed.
//!
//! Frequencies are `theta^(-2i/D)`, f32, as Hugging Face computes them.

use std::sync::{Arc, Mutex};

use tt_tensor::{Tensor, fused};

use crate::error::{Error, Result};
use crate::forward::Positions;

/// Cloning gives another handle to the same tables.
#[derive(Clone)]
pub struct Rope {
    inv_freq: Arc<[f32]>,
    max_positions: usize,
    /// Cosines and sines, `[positions, D/2]` each, kept from pass to pass and grown on demand.
    tables: Arc<Mutex<Option<(Tensor, Tensor)>>>,
}

impl Rope {
    /// For heads of `head_dim`, whose pairs turn by `theta^(-2i/head_dim)` a position.
    pub fn new(head_dim: usize, theta: f64, max_positions: usize) -> Self {
        let inv_freq = (0..head_dim / 2)
            .map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32))
            .collect();
        Self {
            inv_freq,
            max_positions,
            tables: Arc::default(),
        }
    }

    pub fn inv_freq(&self) -> &[f32] {
        &self.inv_freq
    }

    /// Rotates `x` `[B, T, H, D]`. Error: positions beyond those the model was made for.
    pub fn apply(&self, x: &Tensor, positions: &Positions) -> Result<Tensor> {
        let (cos, sin) = self.tables(x, positions.bound)?;
        Ok(fused::rope(x, &cos, &sin, &positions.position_ids)?)
    }

    fn tables(&self, x: &Tensor, positions: usize) -> Result<(Tensor, Tensor)> {
        let max = self.max_positions;
        if positions > max {
            return Err(Error::TooLong { positions, max });
        }
        let mut tables = self.tables.lock().expect("no panic while growing");
        match &*tables {
            Some(ready) if ready.0.dims()[0] >= positions => Ok(ready.clone()),
            _ => {
                // Rounded up, so that generating token by token does not rebuild them each time.
                let positions = positions.next_power_of_two().min(max);
                let fresh = fused::rope_tables(&self.inv_freq, positions, x.device())?;
                Ok(tables.insert(fresh).clone())
            }
        }
    }
}
