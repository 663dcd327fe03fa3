//! Random numbers that are functions of a key and an index, so that a resumed run draws what it would have drawn.
//!
//! A [`Seed`] is refined step by step, `seed.fold(step).fold(micro_batch).fold_str(path)`, and finally names a
//! stream of Philox 4x32-10 numbers (Salmon et al. 2011) that every device generates alike.

use candle_core::Shape;
use tt_cpu::{FusedOps, RngKey};

use crate::device::{Device, on_device};
use crate::error::Result;
use crate::tensor::Tensor;

/// A point in the tree of random streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    key: u64,
    stream: u64,
}

impl Seed {
    /// The stream that a configuration's `seed` names.
    pub fn new(seed: u64) -> Self {
        Self {
            key: seed,
            stream: 0,
        }
    }

    /// The child stream `index`.
    pub fn fold(self, index: u64) -> Self {
        Self {
            key: self.key,
            stream: mix(self.stream ^ mix(index.wrapping_add(0x9E37_79B9_7F4A_7C15))),
        }
    }

    /// The child stream of a name, e.g. a module path.
    pub fn fold_str(self, name: &str) -> Self {
        // FNV-1a: stable across platforms and releases, which std's hashers do not promise.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self.fold(hash)
    }

    /// A number uniform in `[0, 1)`, for choices made on the host.
    pub fn unit(self) -> f64 {
        let bits = mix(mix(self.key) ^ self.stream);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The key of its numbers, as operations take it.
    pub fn key(self) -> RngKey {
        RngKey {
            key: self.key,
            stream: self.stream,
        }
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014): a bijection that mixes every bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Tensor {
    /// Normal f32 values.
    pub fn randn(
        mean: f32,
        std: f32,
        shape: impl Into<Shape>,
        seed: Seed,
        device: Device,
    ) -> Result<Self> {
        Self::filled(shape.into(), device, |out, len| {
            on_device!(
                device,
                S,
                out.of::<S>()?.fill_normal(len, mean, std, seed.key())?
            );
            Ok(())
        })
    }

    /// f32 values uniform in `[low, high)`.
    pub fn rand(
        low: f32,
        high: f32,
        shape: impl Into<Shape>,
        seed: Seed,
        device: Device,
    ) -> Result<Self> {
        Self::filled(shape.into(), device, |out, len| {
            on_device!(
                device,
                S,
                out.of::<S>()?.fill_uniform(len, low, high, seed.key())?
            );
            Ok(())
        })
    }
}
