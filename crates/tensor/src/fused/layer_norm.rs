//! LayerNorm over the last dim: `y = (x - mean) / sqrt(var + eps) * weight + bias`, `var` the mean of squares, not corrected.
//!
//! Shapes: `x` `[.., D]`, `weight` and `bias` `[D]`, f32. Arithmetic is f32; the result may be of another type than `x`, as
//! with RMSNorm. With `h = (x - mean) / sqrt(var + eps)` and `e = dy * weight`, `dx = (e - mean(e) - h mean(e h)) / sqrt(var + eps)`,
//! `dweight = sum of dy h`, `dbias = sum of dy`.
//! Composed of single operations: on every device as it is. Source: Ba et al. 2016, arXiv:1607.06450.

use candle_core::DType;

use crate::device::common_device;
use crate::error::Result;
use crate::fused::{dense, dense_f32, expect_shape};
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// LayerNorm over the last dim: `(x - mean) / sqrt(var + eps) * weight + bias`, `var` the mean of squares, not corrected.
///
/// Shapes: `x` `[.., D]`, `weight` and `bias` `[D]`, f32; the result has `x`'s shape and the type `dtype`. Arithmetic is f32.
/// Errors: shapes, types or devices that do not fit.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
    dtype: DType,
) -> Result<Tensor> {
    const OP: &str = "layer_norm";
    common_device(OP, &[x.device, weight.device, bias.device])?;
    let x = dense(OP, x)?;
    let (weight, bias) = (dense_f32(OP, weight)?, dense_f32(OP, bias)?);
    let dim = x.dims().last().copied().unwrap_or(1);
    expect_shape(OP, &weight, &[dim])?;
    expect_shape(OP, &bias, &[dim])?;
    let rows = x.elem_count() / dim.max(1);

    let (normalised, inv_std) = normalise(&matrix(&x, rows, dim)?, eps)?;
    let y = normalised.mul(&weight.detach())?.add(&bias.detach())?;
    let y = y.to_dtype(dtype)?.reshape(x.shape().clone())?;

    let (x_saved, w_saved) = (x.detach(), Saved::new(&weight));
    record(OP, &[&x, &weight, &bias], y, move |g| {
        let dy = matrix(&g.output(), rows, dim)?;
        // Made again rather than kept: half the memory that the layer holds.
        let (normalised, _) = normalise(&matrix(&x_saved, rows, dim)?, eps)?;
        if g.wanted(0) {
            let e = dy.mul(&w_saved.get().detach())?;
            let along = e.mul(&normalised)?.mean_keepdim(&[1])?;
            let dx = e.sub(&e.mean_keepdim(&[1])?)?;
            let dx = dx.sub(&normalised.mul(&along)?)?.mul(&inv_std)?;
            let dx = dx.to_dtype(x_saved.dtype)?;
            g.add(0, dx.reshape(x_saved.shape().clone())?)?;
        }
        if g.wanted(1) {
            g.add(1, dy.mul(&normalised)?.sum(&[0])?)?;
        }
        if g.wanted(2) {
            g.add(2, dy.sum(&[0])?)?;
        }
        Ok(())
    })
}

/// `x` as f32 `[rows, D]`, off the tape.
fn matrix(x: &Tensor, rows: usize, dim: usize) -> Result<Tensor> {
    x.detach().to_dtype(DType::F32)?.reshape((rows, dim))
}

/// Rows of mean 0 and variance 1, and what they were multiplied by, `[rows, 1]`.
fn normalise(x: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let centred = x.sub(&x.mean_keepdim(&[1])?)?;
    let variance = centred.sqr()?.mean_keepdim(&[1])?;
    let inv_std = variance.affine(1.0, f64::from(eps))?.sqrt()?.recip()?;
    Ok((centred.mul(&inv_std)?, inv_std))
}
