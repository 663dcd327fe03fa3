//! LayerNorm over the last dim: `y = (x - mean) / sqrt(var + eps) * weight + bias`, `var` the mean of squares, not corrected.
//!
//! Shapes: `x` `[.., D]`, `weight` and `bias` `[D]`, f32. Arithmetic is f32; the result may be of another type than `x`, as
//! with RMSNorm. Kept for the backward pass are `x` and two numbers a row. Source: Ba et al. 2016, arXiv:1607.06450.

use candle_core::DType;
use tt_cpu::{FusedOps, Write};

use crate::device::{Backend, Output, common_device, on_device};
use crate::error::Result;
use crate::fused::{alloc_like, dense, dense_f32, expect_shape, finish};
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
    let device = common_device(OP, &[x.device, weight.device, bias.device])?;
    let x = dense(OP, x)?;
    let (weight, bias) = (dense_f32(OP, weight)?, dense_f32(OP, bias)?);
    let dim = x.dims().last().copied().unwrap_or(1);
    expect_shape(OP, &weight, &[dim])?;
    expect_shape(OP, &bias, &[dim])?;
    let rows = x.elem_count() / dim.max(1);
    let mut y = device.alloc(dtype, x.elem_count())?;
    let mut mean = device.alloc(DType::F32, rows)?;
    let mut inv_std = device.alloc(DType::F32, rows)?;
    on_device!(device, S, {
        let (x, w, b) = (x.read(), weight.read(), bias.read());
        let (y, mean, inv_std) = (y.of::<S>()?, mean.of::<S>()?, inv_std.of::<S>()?);
        S::layer_norm(x.view()?, w.view()?, b.view()?, eps, y, mean, inv_std)?
    });
    let y = Tensor::from_output(y, dtype, device, x.shape().clone());
    let [mean, inv_std] =
        [mean, inv_std].map(|it| Tensor::from_output(it, DType::F32, device, rows));
    let (x_saved, w_saved) = (x.detach(), Saved::new(&weight));
    record(OP, &[&x, &weight, &bias], y, move |g| {
        let dy = g.output().contiguous()?;
        let weight = w_saved.get();
        // All at once, so that `x` and `dy` are read once; what is added to is as short as a row.
        let mut dx = room(g.wanted(0), &x_saved)?;
        let mut dweight = room(g.wanted(1), &weight)?;
        let mut dbias = room(g.wanted(2), &weight)?;
        on_device!(device, S, {
            let (xr, wr, dyr) = (x_saved.read(), weight.read(), dy.read());
            let (mr, ir) = (mean.read(), inv_std.read());
            let saved = (xr.view()?, wr.view()?, mr.view()?, ir.view()?);
            let (dx, dw, db) = (
                of::<S>(&mut dx)?,
                of::<S>(&mut dweight)?,
                of::<S>(&mut dbias)?,
            );
            let [dw, db] = [dw, db].map(|sums| sums.map(|sums| (sums, Write::Assign)));
            S::layer_norm_backward(saved.0, saved.1, saved.2, saved.3, dyr.view()?, dx, dw, db)?
        });
        let gradients = [(dx, &x_saved), (dweight, &weight), (dbias, &weight)];
        for (input, (grad, like)) in gradients.into_iter().enumerate() {
            if let Some(grad) = grad {
                g.add(input, finish(grad, like))?;
            }
        }
        Ok(())
    })
}

/// Room for a gradient, if it is wanted.
fn room(wanted: bool, like: &Tensor) -> Result<Option<Output>> {
    wanted.then(|| alloc_like(like)).transpose()
}

fn of<S: Backend>(out: &mut Option<Output>) -> Result<Option<&mut S>> {
    out.as_mut().map(Output::of).transpose()
}
