//! Rotary position embedding, applied to queries and keys before attention.
//!
//! Shapes: `x` is `[B, T, H, D]`, `D` even; `cos`, `sin` are `[P, D/2]`, f32; `positions` is `[B, T]`, u32, below `P`.
//! Pairs are (i, i + D/2) as in Hugging Face Llama.
//! Errors: `ShapeMismatch` if `D` is odd or the tables do not fit it.
//! Source: Su et al. 2021, arXiv:2104.09864, eq. 34.

use candle_core::DType;
use tt_cpu::FusedOps;

use crate::device::{Device, common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::{alloc_like, dense_f32, expect_shape, finish, rows};
use crate::tape::record;
use crate::tensor::Tensor;

/// Tables of `cos` and `sin` of `position * inv_freq` for positions `0..positions`, each `[positions, D/2]`.
///
/// Angles are f32 products, as Hugging Face computes them.
pub fn rope_tables(inv_freq: &[f32], positions: usize, device: Device) -> Result<(Tensor, Tensor)> {
    let angles = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..positions)
            .flat_map(|position| inv_freq.iter().map(move |w| f(position as f32 * w)))
            .collect()
    };
    let shape = (positions, inv_freq.len());
    let cos = Tensor::from_slice(&angles(f32::cos), shape, device)?;
    let sin = Tensor::from_slice(&angles(f32::sin), shape, device)?;
    Ok((cos, sin))
}

/// Rotary position embedding of queries or keys, before attention.
///
/// Shapes: `x` `[B, T, H, D]`, `D` even; `cos` and `sin` `[P, D/2]`, f32, as [`rope_tables`] makes them; `positions` `[B, T]`,
/// u32, below `P`. The result has `x`'s shape and type. Pairs are (i, i + D/2), as in Hugging Face's Llama.
/// Errors: `D` odd, or tables that do not fit it; a position that is not below `P`.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, positions: &Tensor) -> Result<Tensor> {
    common_device(
        "rope",
        &[x.device, cos.device, sin.device, positions.device],
    )?;
    let x = rows("rope", x)?;
    let [batch, length, _, dim] = x.dims_of("rope")?;
    let [_, half] = cos.dims_of("rope")?;
    if dim != 2 * half || cos.dims() != sin.dims() {
        return Err(Error::shapes("rope", x.shape(), cos.shape()));
    }
    expect_shape("rope", positions, &[batch, length])?;
    positions.expect_dtype("rope", DType::U32)?;
    let (cos, sin) = (dense_f32("rope", cos)?, dense_f32("rope", sin)?);
    let positions = positions.contiguous()?;
    let y = rotate(&x, &cos, &sin, &positions, false)?;
    let (cos, sin, positions) = (cos.detach(), sin.detach(), positions.detach());
    record("rope", &[&x], y, move |g| {
        let dy = rows("rope", &g.output())?;
        g.add(0, rotate(&dy, &cos, &sin, &positions, true)?)
    })
}

fn rotate(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    positions: &Tensor,
    inverse: bool,
) -> Result<Tensor> {
    let mut y = alloc_like(x)?;
    on_device!(x.device, S, {
        let (xr, cr, sr, pr) = (x.read(), cos.read(), sin.read(), positions.read());
        let y = y.of::<S>()?;
        S::rope(xr.view()?, cr.view()?, sr.view()?, pr.view()?, inverse, y)?
    });
    Ok(finish(y, x))
}
