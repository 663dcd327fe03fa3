//! What an optimizer step needs besides arithmetic: norms of gradients, the clip factor, AdamW in place.
//!
//! Scalars stay on the device: a step reads nothing back until its numbers are logged.

use candle_core::DType;
use tt_cpu::{AdamWParams, FusedOps};

use crate::device::{Backend, Device, on_device};
use crate::error::Result;
use crate::fused::{dense, expect_shape};
use crate::tensor::Tensor;

/// Sums of squares of the first `count` tensors, one for each: f32 `[count]`. Missing ones count as 0.
///
/// An iterator, because a vector of a model's gradients would be the step's one large allocation.
pub fn sum_squares(
    device: Device,
    count: usize,
    tensors: impl Iterator<Item = Tensor>,
) -> Result<Tensor> {
    let mut out = device.alloc(DType::F32, count);
    on_device!(device, S, out.of::<S>()?.fill(count, 0.0)?);
    for (slot, tensor) in tensors.take(count).enumerate() {
        let tensor = dense("sum_squares", &tensor)?;
        on_device!(device, S, {
            S::sum_squares_into(tensor.read().view()?, out.of::<S>()?, slot)?
        });
    }
    Ok(Tensor::from_output(out, DType::F32, device, count))
}

/// What gradients of a summed loss are multiplied by: `1 / weight`, times `min(1, max_norm / (norm + 1e-6))` if
/// clipping is on, where `norm` is that of the gradients already divided by `weight`.
///
/// A step without a token to learn from has weight 0 and gradients of 0: it gives a norm of 0, not NaN.
///
/// `squares` are the [`sum_squares`] of the summed gradients, `weight` is a scalar. Gives (factor `[1]`, norm `[]`).
pub fn clip_scale(
    squares: &Tensor,
    weight: &Tensor,
    max_norm: Option<f64>,
) -> Result<(Tensor, Tensor)> {
    let least = Tensor::full(f32::MIN_POSITIVE, (), weight.device())?;
    let inverse = weight.reshape(())?.maximum(&least)?.recip()?;
    let norm = squares.sum_all()?.sqrt()?.mul(&inverse)?;
    let factor = match max_norm {
        None => inverse,
        Some(max_norm) => {
            let one = Tensor::ones((), norm.device)?;
            let clip = norm.affine(1.0, 1e-6)?.recip()?.affine(max_norm, 0.0)?;
            clip.minimum(&one)?.mul(&inverse)?
        }
    };
    Ok((factor.reshape(1)?, norm))
}

/// Rates and constants of [`adamw_step`].
pub type AdamWStep = AdamWParams;

/// One AdamW step on `param`, in place; `m` and `v` are its moments, `grad_scale` `[1]` multiplies the gradient.
pub fn adamw_step(
    params: &AdamWStep,
    param: &Tensor,
    grad: &Tensor,
    grad_scale: &Tensor,
    m: &Tensor,
    v: &Tensor,
) -> Result<()> {
    const OP: &str = "adamw_step";
    let grad = dense(OP, grad)?;
    for tensor in [&grad, m, v] {
        expect_shape(OP, tensor, param.dims())?;
    }
    let (gr, sr) = (grad.read(), grad_scale.read());
    param.write(|param| {
        m.write(|m| {
            v.write(|v| {
                on_device!(grad.device, S, {
                    let (param, m, v) = (S::of_mut(param)?, S::of_mut(m)?, S::of_mut(v)?);
                    S::adamw_step(params, param, gr.view()?, sr.view()?, m, v)?
                });
                Ok(())
            })
        })
    })
}
