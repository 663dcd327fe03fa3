//! RMSNorm over the last dim: `y = x / sqrt(mean(x^2) + eps) * weight`.
//!
//! Shapes: `x` `[.., D]`, `weight` `[D]`, f32. The result may be of another type than `x`: a norm is where the f32 residual
//! stream turns into the operand of a product. Source: Zhang and Sennrich 2019, arXiv:1910.07467.

use candle_core::DType;
use tt_cpu::FusedOps;

use crate::device::{Backend, common_device, on_device};
use crate::error::Result;
use crate::fused::{alloc_like, dense, dense_f32, expect_shape, finish};
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// RMSNorm over the last dim: `x / sqrt(mean(x^2) + eps) * weight`.
///
/// Shapes: `x` `[.., D]`, `weight` `[D]`, f32; the result has `x`'s shape and the type `dtype`: a norm is where the f32
/// residual stream turns into the operand of a product. Errors: shapes, types or devices that do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32, dtype: DType) -> Result<Tensor> {
    let device = common_device("rms_norm", &[x.device, weight.device])?;
    let x = dense("rms_norm", x)?;
    let weight = dense_f32("rms_norm", weight)?;
    let dim = x.dims().last().copied().unwrap_or(1);
    expect_shape("rms_norm", &weight, &[dim])?;
    let rows = x.elem_count() / dim.max(1);
    let mut y = device.alloc(dtype, x.elem_count())?;
    let mut inv_rms = device.alloc(DType::F32, rows)?;
    on_device!(device, S, {
        let (x, w) = (x.read(), weight.read());
        let (y, inv_rms) = (y.of::<S>()?, inv_rms.of::<S>()?);
        S::rms_norm(x.view()?, w.view()?, eps, y, inv_rms)?
    });
    let y = Tensor::from_output(y, dtype, device, x.shape().clone());
    let inv_rms = Tensor::from_output(inv_rms, DType::F32, device, rows);
    let (x_saved, w_saved) = (x.detach(), Saved::new(&weight));
    record("rms_norm", &[&x, &weight], y, move |g| {
        let dy = g.output().contiguous()?;
        let weight = w_saved.get();
        let (xr, wr, ir, dyr) = (x_saved.read(), weight.read(), inv_rms.read(), dy.read());
        if g.wanted(0) {
            let mut dx = alloc_like(&x_saved)?;
            on_device!(device, S, {
                let dx = Some(dx.of::<S>()?);
                S::rms_norm_backward(xr.view()?, wr.view()?, ir.view()?, dyr.view()?, dx, None)?
            });
            g.add(0, finish(dx, &x_saved))?;
        }
        g.write(1, &weight, |dw, write| {
            on_device!(device, S, {
                let dw = Some((S::of_mut(dw)?, write));
                S::rms_norm_backward(xr.view()?, wr.view()?, ir.view()?, dyr.view()?, None, dw)?
            });
            Ok(())
        })
    })
}
