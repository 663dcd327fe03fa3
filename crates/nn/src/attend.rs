//! Attention of a module's queries over its keys and values, those in the cache of the pass included.
//!
//! Shapes: `q` `[B, T, H, D]`, `k` and `v` `[B, T, Hkv, D]`, `Hkv` dividing `H`; the result is `[B, T, H, D]`.
//! Tokens see those of their own segment only, so padding is a segment of its own.
//! Errors: with a cache, segments (it does not keep them) and attention that looks ahead (tokens that came later would
//! change what is cached).

use tt_tensor::{Tensor, fused};

use crate::dropped_attention::dropped_attention;
use crate::error::{Error, Result};
use crate::forward::{Forward, Positions};
use crate::path::ModulePath;

/// Which positions of its segment a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMask {
    /// None after its own.
    pub causal: bool,
    /// This many, itself included; `None`: all.
    pub window: Option<usize>,
}

impl AttentionMask {
    /// All positions up to the query's own.
    pub const CAUSAL: Self = Self {
        causal: true,
        window: None,
    };
    /// All positions.
    pub const BIDIRECTIONAL: Self = Self {
        causal: false,
        window: None,
    };
}

/// How queries look at keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Which of them.
    pub mask: AttentionMask,
    /// What scores are multiplied by; `None`: `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Dropout of the probabilities while training. Above 0 scores are held whole there, `[B, H, T, T]`.
    pub dropout: f32,
}

impl From<AttentionMask> for AttentionOptions {
    fn from(mask: AttentionMask) -> Self {
        Self {
            mask,
            scale: None,
            dropout: 0.0,
        }
    }
}

/// `softmax(q k^T / sqrt(D)) v` of the attention module at `module`, which continues and extends the cache of `fwd`, if
/// there is one.
///
/// Shapes: `q` `[B, T, H, D]`, `k` and `v` `[B, T, Hkv, D]`, `Hkv` dividing `H`; the result is `[B, T, H, D]`. Tokens see those
/// of their own segment only, so padding is a segment of its own. `options` may be an [`AttentionMask`] alone.
///
/// Errors: with a cache, segments (it does not keep them) and attention that looks ahead (tokens that came later would
/// change what is cached); shapes, types or devices that do not fit.
pub fn attend(
    fwd: &Forward,
    module: &ModulePath,
    [q, k, v]: [Tensor; 3],
    positions: &Positions,
    options: impl Into<AttentionOptions>,
) -> Result<Tensor> {
    let options = options.into();
    let (k, v) = match fwd.cache() {
        None => (k, v),
        Some(cache) => {
            let refuse = |why| {
                let module = module.to_string();
                Err(Error::Cache { module, why })
            };
            if !options.mask.causal {
                return refuse("attention that looks ahead cannot go on from what was seen before");
            }
            if positions.segment_ids.is_some() {
                return refuse("rows of several segments are not kept apart there");
            }
            cache.extend(module, k, v)?
        }
    };
    if fwd.is_training() && options.dropout > 0.0 {
        return dropped_attention(fwd, module, [q, k, v], positions, &options);
    }
    let options = fused::Attention {
        scale: options.scale,
        causal: options.mask.causal,
        window: options.mask.window,
        segments: positions.segment_ids.clone().map(|ids| (ids.clone(), ids)),
    };
    Ok(fused::attention(&q, &k, &v, &options)?)
}
