//! Scaled-dot-product attention: `softmax(q k^T * scale + mask) v`, the scores made block by block.
//!
//! Shapes: `q` `[B, Tq, H, D]`, `k` and `v` `[B, Tk, Hkv, D]`, `Hkv` dividing `H`; the result is `[B, Tq, H, D]`.
//! All three are of one type, which is the result's; softmax and sums are f32.
//! `segments` are ids of queries `[B, Tq]` and keys `[B, Tk]`, u32: a query sees keys of its own id only.
//! The last query is aligned with the last key, so a KV cache needs no further offset.
//! Source: Dao et al. 2022, arXiv:2205.14135 (blocks and the backward pass from the log-sum-exp).

use candle_core::DType;
use tt_cpu::{AttentionParams, FusedOps};

use crate::device::{common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::{alloc_like, expect_shape, finish, rows};
use crate::tape::record;
use crate::tensor::Tensor;

/// Scaling and masking of [`attention`].
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// `None`: `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Whether a query sees no key after its own position.
    pub causal: bool,
    /// A query sees this many positions, itself included.
    pub window: Option<usize>,
    /// Ids of queries `[B, Tq]` and of keys `[B, Tk]`, u32: a query sees keys of its own id only. `None`: all are of one
    /// segment.
    pub segments: Option<(Tensor, Tensor)>,
}

/// `softmax(q k^T * scale + mask) v`, the scores made block by block and never held whole.
///
/// Shapes: `q` `[B, Tq, H, D]`, `k` and `v` `[B, Tk, Hkv, D]`, where `Hkv` divides `H` and each key head serves
/// `H / Hkv` query heads; the result is `[B, Tq, H, D]`. All three are of one type (f32, bf16 or f16), which is the
/// result's; softmax and sums are f32. The last query is aligned with the last key, so that with keys from a cache the
/// queries stand at the end. A query that sees no key gives 0.
///
/// Errors: shapes, types or devices that do not fit; `causal` with fewer keys than queries.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<Tensor> {
    const OP: &str = "attention";
    let device = common_device(OP, &[q.device, k.device, v.device])?;
    let (q, k, v) = (rows(OP, q)?, rows(OP, k)?, rows(OP, v)?);
    let [batch, queries, heads, head_dim] = q.dims_of(OP)?;
    let [_, keys, kv_heads, _] = k.dims_of(OP)?;
    expect_shape(OP, &k, &[batch, keys, kv_heads, head_dim])?;
    expect_shape(OP, &v, k.dims())?;
    k.expect_dtype(OP, q.dtype)?;
    v.expect_dtype(OP, q.dtype)?;
    if kv_heads == 0 || heads % kv_heads != 0 || (options.causal && keys < queries) {
        return Err(Error::shapes(OP, q.shape(), k.shape()));
    }
    if let Some((of_queries, of_keys)) = &options.segments {
        expect_shape(OP, of_queries, &[batch, queries])?;
        expect_shape(OP, of_keys, &[batch, keys])?;
        of_queries.expect_dtype(OP, DType::U32)?;
        of_keys.expect_dtype(OP, DType::U32)?;
    }
    let params = AttentionParams {
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head_dim,
        scale: options.scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
        causal: options.causal,
        window: options.window,
    };
    let segments = match &options.segments {
        Some((q, k)) => Some((q.detach().contiguous()?, k.detach().contiguous()?)),
        None => None,
    };
    let mut out = alloc_like(&q)?;
    let mut lse = device.alloc(DType::F32, batch * heads * queries)?;
    on_device!(device, S, {
        let (qr, kr, vr) = (q.read(), k.read(), v.read());
        let guards = segments.as_ref().map(|(q, k)| (q.read(), k.read()));
        let segments = match &guards {
            Some((q, k)) => Some((q.view::<S>()?, k.view::<S>()?)),
            None => None,
        };
        let (out, lse) = (out.of::<S>()?, lse.of::<S>()?);
        S::attention(
            &params,
            qr.view()?,
            kr.view()?,
            vr.view()?,
            segments,
            out,
            lse,
        )?
    });
    let out = finish(out, &q);
    let lse = Tensor::from_output(lse, DType::F32, device, (batch, heads, queries));

    let saved = (q.detach(), k.detach(), v.detach(), out.clone());
    record(OP, &[&q, &k, &v], out, move |g| {
        let (q, k, v, out) = saved;
        let dout = g.output().contiguous()?;
        let (mut dq, mut dk, mut dv) = (alloc_like(&q)?, alloc_like(&k)?, alloc_like(&v)?);
        on_device!(device, S, {
            let (qr, kr, vr) = (q.read(), k.read(), v.read());
            let (or, lr, dr) = (out.read(), lse.read(), dout.read());
            let guards = segments.as_ref().map(|(q, k)| (q.read(), k.read()));
            let segments = match &guards {
                Some((q, k)) => Some((q.view::<S>()?, k.view::<S>()?)),
                None => None,
            };
            S::attention_backward(
                &params,
                qr.view()?,
                kr.view()?,
                vr.view()?,
                segments,
                or.view()?,
                lr.view()?,
                dr.view()?,
                dq.of::<S>()?,
                dk.of::<S>()?,
                dv.of::<S>()?,
            )?
        });
        g.add(0, finish(dq, &q))?;
        g.add(1, finish(dk, &k))?;
        g.add(2, finish(dv, &v))
    })
}
