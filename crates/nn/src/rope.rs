//! Rotary position embedding of a model: its frequencies, and tables made once for as many positions as needed.
//!
//! Frequencies are `theta^(-2i/D)`, then scaled, in f32 and in the order of operations of Hugging Face.
//! Sources: linear scaling, Chen et al. 2023, arXiv:2306.15595; `llama3`, Llama 3.1's model card and code.

use std::f32::consts::TAU;
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::{Tensor, fused};

use crate::error::{Error, Result};
use crate::forward::Positions;

/// How a model trained on short sequences is stretched to longer ones. Keys are named as in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// All frequencies are divided by `factor`.
    Linear {
        /// At least 1.
        #[schemars(range(min = 1.0))]
        factor: f64,
    },
    /// Low frequencies are divided by `factor`, high ones are kept, those between are interpolated.
    Llama3 {
        /// At least 1.
        #[schemars(range(min = 1.0))]
        factor: f64,
        /// Fewer turns than this over the original length count as low.
        low_freq_factor: f64,
        /// More turns than this over the original length count as high.
        high_freq_factor: f64,
        /// Longest sequence before stretching, in tokens.
        #[schemars(range(min = 1))]
        original_max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// What is wrong with the numbers, if anything.
    pub fn problem(&self) -> Option<String> {
        let (Self::Linear { factor } | Self::Llama3 { factor, .. }) = *self;
        if !(factor >= 1.0 && factor.is_finite()) {
            return Some(format!("factor {factor} is not a number of at least 1"));
        }
        match *self {
            Self::Llama3 {
                low_freq_factor: low,
                high_freq_factor: high,
                ..
            } if !(low > 0.0 && high > low) => Some(format!(
                "low_freq_factor {low} must be above 0 and below high_freq_factor {high}"
            )),
            Self::Llama3 {
                original_max_position_embeddings: 0,
                ..
            } => Some("original_max_position_embeddings must be at least 1".to_owned()),
            _ => None,
        }
    }

    /// The frequency that takes the place of `inv_freq`.
    pub fn scale(&self, inv_freq: f32) -> f32 {
        match *self {
            Self::Linear { factor } => inv_freq / factor as f32,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let factor = factor as f32;
                let (low, high) = (low_freq_factor as f32, high_freq_factor as f32);
                let turns = original_max_position_embeddings as f32 / (TAU / inv_freq);
                if turns < low {
                    inv_freq / factor
                } else if turns > high {
                    inv_freq
                } else {
                    let smooth = (turns - low) / (high - low);
                    (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
                }
            }
        }
    }
}

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

    /// The same with its frequencies scaled, for longer contexts than a model was trained on.
    pub fn with_scaling(mut self, scaling: Option<RopeScaling>) -> Self {
        if let Some(scaling) = scaling {
            self.inv_freq = self.inv_freq.iter().map(|&f| scaling.scale(f)).collect();
        }
        self
    }

    /// The angle of each pair per position, radians: `[D/2]`.
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
        // A model may be rehearsed on one device and trained on another.
        let serves =
            |(cos, _): &&(Tensor, Tensor)| cos.dims()[0] >= positions && cos.device() == x.device();
        match tables.as_ref().filter(serves) {
            Some(ready) => Ok(ready.clone()),
            None => {
                // Rounded up, so that generating token by token does not rebuild them each time.
                let positions = positions.next_power_of_two().min(max);
                let fresh = fused::rope_tables(&self.inv_freq, positions, x.device())?;
                Ok(tables.insert(fresh).clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let plain = Rope::new(128, 500_000.0, 8);
        let scaled = Rope::new(128, 500_000.0, 8).with_scaling(Some(LLAMA3));
        let ratios: Vec<f32> = plain
            .inv_freq()
            .iter()
            .zip(scaled.inv_freq())
            .map(|(plain, scaled)| plain / scaled)
            .collect();
        assert!(ratios.is_sorted(), "{ratios:?}");
        assert_eq!((ratios[0], ratios[63]), (1.0, 8.0));
        let between = ratios.iter().filter(|&&r| r > 1.0 && r < 8.0).count();
        // 8192 tokens are one to four turns for 2 pi theta^(2i/128) from 2048 to 8192: i from 28.2 to 35.
        assert_eq!(between, 6, "{ratios:?}");
    }

    #[test]
    fn scaling_that_makes_no_sense_is_refused() {
        let RopeScaling::Llama3 { factor, .. } = LLAMA3 else {
            unreachable!("as above")
        };
        let llama3 = |low_freq_factor, high_freq_factor, original| RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: original,
        };
        assert_eq!(LLAMA3.problem(), None);
        for (scaling, key) in [
            (RopeScaling::Linear { factor: 0.5 }, "factor"),
            (RopeScaling::Linear { factor: f64::NAN }, "factor"),
            (llama3(4.0, 4.0, 64), "low_freq_factor"),
            (llama3(0.0, 4.0, 64), "low_freq_factor"),
            (llama3(1.0, 4.0, 0), "original_max_position_embeddings"),
        ] {
            let problem = scaling.problem().expect("a problem");
            assert!(problem.contains(key), "{problem}");
        }
    }
}
