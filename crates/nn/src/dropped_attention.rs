//! Attention with dropout of its probabilities, from operations that hold the scores whole: the fused kernel makes them
//! block by block and has none.
//!
//! Shapes: `q` `[B, T, H, D]`, `k` and `v` `[B, T, Hkv, D]`, `Hkv` dividing `H`; the result is `[B, T, H, D]`, of `q`'s type.
//! Scores and probabilities are f32 `[B, H, T, T]`.
//! Source: transformers' `eager_attention_forward`, where what falls out is 0 and the rest is divided by what is kept.

use tt_tensor::{DType, Tensor};

use crate::attend::AttentionOptions;
use crate::error::Result;
use crate::forward::{Forward, Positions};
use crate::path::ModulePath;

/// So far below any score that its exponential is 0.
const UNSEEN: f32 = -1e30;

pub(crate) fn dropped_attention(
    fwd: &Forward,
    module: &ModulePath,
    [q, k, v]: [Tensor; 3],
    positions: &Positions,
    options: &AttentionOptions,
) -> Result<Tensor> {
    let [b, t, h, d] = q.dims_of("attention")?;
    let kv_heads = k.dims()[2];
    // Each key/value head repeated for its group of query heads.
    let by_head = |x: &Tensor| -> Result<Tensor> {
        let x = x.reshape((b, t, kv_heads, 1, d))?;
        let x = x.expand((b, t, kv_heads, h / kv_heads, d))?;
        Ok(x.reshape((b, t, h, d))?.permute(&[0, 2, 1, 3])?) // [B, H, T, D]
    };
    let scale = options.scale.unwrap_or(1.0 / (d as f32).sqrt());
    let scores = q
        .permute(&[0, 2, 1, 3])?
        .to_dtype(DType::F32)?
        .matmul(&by_head(&k)?.to_dtype(DType::F32)?.transpose(2, 3)?)?
        .affine(f64::from(scale), 0.0)?; // [B, H, T, T]
    let probabilities = masked(scores, positions, options)?.softmax(3)?;
    let kept = fwd.dropout(&module.join("attn_dropout"), probabilities, options.dropout)?;
    let y = kept.to_dtype(v.dtype())?.matmul(&by_head(&v)?)?; // [B, H, T, D]
    Ok(y.permute(&[0, 2, 1, 3])?.contiguous()?)
}

/// `scores` `[B, H, T, T]` with what a query does not see put out of reach.
fn masked(scores: Tensor, positions: &Positions, options: &AttentionOptions) -> Result<Tensor> {
    let [b, _, t, _] = scores.dims_of("attention")?;
    let device = scores.device();
    let unseen = Tensor::full(UNSEEN, (), device)?;
    let at: Vec<f32> = (0..t).map(|at| at as f32).collect();
    let queries = Tensor::from_slice(&at, (1, 1, t, 1), device)?;
    let keys = Tensor::from_slice(&at, (1, 1, 1, t), device)?;
    let mut scores = scores;
    if options.mask.causal {
        scores = keys.le(&queries)?.where_cond(&scores, &unseen)?;
    }
    if let Some(window) = options.mask.window {
        let ends = keys.affine(1.0, window as f64)?;
        scores = queries.lt(&ends)?.where_cond(&scores, &unseen)?;
    }
    if let Some(ids) = &positions.segment_ids {
        let (queries, keys) = (ids.reshape((b, 1, t, 1))?, ids.reshape((b, 1, 1, t))?);
        scores = keys.eq(&queries)?.where_cond(&scores, &unseen)?;
    }
    Ok(scores)
}
