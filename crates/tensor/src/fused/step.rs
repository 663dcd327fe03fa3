//! What an optimizer step is made of: norms of gradients, clipping, products, and the update in place.
//!
//! Scalars stay on the device: a step reads nothing back until its numbers are logged.

use candle_core::DType;
use tt_cpu::{FusedOps, UpdateRule, Write};

use crate::device::{Backend, Device, common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::{dense_f32, expect_shape};
use crate::tensor::Tensor;

/// Sums of squares of the first `count` tensors, one for each: f32 `[count]`. Missing ones count as 0.
///
/// An iterator, because a vector of a model's gradients would be the step's one large allocation.
pub fn sum_squares(
    device: Device,
    count: usize,
    tensors: impl Iterator<Item = Tensor>,
) -> Result<Tensor> {
    let mut out = device.alloc(DType::F32, count)?;
    on_device!(device, S, out.of::<S>()?.fill(count, 0.0)?);
    for (slot, tensor) in tensors.take(count).enumerate() {
        let tensor = dense_f32("sum_squares", &tensor)?;
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
    // Far below any weight, and far enough from the end of f32 that every device has its reciprocal.
    let least = Tensor::full(1e-30, (), weight.device())?;
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

/// Numbers of [`optimizer_step`] for each parameter, in its slot: the sum of squares of the step, the sum of squares of the
/// weights after it, and how many weights moved against their gradient.
pub struct StepSums {
    /// f32 `[slots, 3]`, 0 where no step was made.
    pub values: Tensor,
}

impl StepSums {
    /// Zeros for that many slots.
    pub fn new(slots: usize, device: Device) -> Result<Self> {
        let values = Tensor::zeros((slots, 3), device)?;
        Ok(Self { values })
    }
}

/// One step of `rule` on `param`, in place, with its `states`, f32 or bf16; `grad_scale` `[1]` multiplies the gradient.
/// `sums` takes the step's numbers in the given slot.
pub fn optimizer_step(
    rule: &UpdateRule,
    param: &Tensor,
    grad: &Tensor,
    grad_scale: &Tensor,
    states: &[&Tensor],
    sums: Option<(&StepSums, usize)>,
) -> Result<()> {
    const OP: &str = "optimizer_step";
    let grad = dense_f32(OP, grad)?;
    expect_shape(OP, &grad, param.dims())?;
    for state in states {
        expect_shape(OP, state, param.dims())?;
    }
    if let Some((sums, slot)) = sums
        && slot >= sums.values.dims()[0]
    {
        let why = format!("slot {slot} of {:?}", sums.values.shape());
        return Err(Error::invalid(OP, why));
    }
    let (gr, sr) = (grad.read(), grad_scale.read());
    let mut states: Vec<_> = states.iter().map(|state| state.buffer.lock()).collect();
    let mut sums = sums.map(|(sums, slot)| (sums.values.buffer.lock(), slot));
    param.write(|param| {
        on_device!(grad.device, S, {
            let mut states = states
                .iter_mut()
                .map(|state| state.of_mut::<S>())
                .collect::<Result<Vec<_>>>()?;
            let sums = match &mut sums {
                Some((sums, slot)) => Some((sums.of_mut::<S>()?, *slot)),
                None => None,
            };
            let param = S::of_mut(param)?;
            S::optimizer_step(rule, param, gr.view()?, sr.view()?, &mut states, sums)?
        });
        Ok(())
    })
}

/// `alpha * a + beta * x`, in the memory of `a` if nobody else sees it, off the tape; if `to_bf16`, rounded to what bf16 can
/// hold.
pub fn combine(a: Tensor, alpha: f64, x: Option<(f64, &Tensor)>, to_bf16: bool) -> Result<Tensor> {
    const OP: &str = "combine";
    a.expect_dtype(OP, DType::F32)?;
    let a = a.into_owned()?;
    let x = match x {
        Some((beta, x)) => {
            expect_shape(OP, x, a.dims())?;
            Some((beta as f32, dense_f32(OP, x)?))
        }
        None => None,
    };
    let reading = x.as_ref().map(|(beta, x)| (*beta, x.read()));
    a.write(|storage| {
        on_device!(a.device, S, {
            let x = match &reading {
                Some((beta, x)) => Some((*beta, x.view::<S>()?)),
                None => None,
            };
            S::of_mut(storage)?.combine(a.elem_count(), alpha as f32, x, to_bf16)?
        });
        Ok(())
    })?;
    drop(reading);
    Ok(a)
}

/// The product of the matrices `a` `[m, k]` and `b` `[k, n]`, of one type and any strides, in f32 and off the tape: sums of
/// 16-bit numbers that are not rounded.
pub fn product_f32(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OP: &str = "product_f32";
    b.expect_dtype(OP, a.dtype)?;
    let device = common_device(OP, &[a.device, b.device])?;
    let [m, k] = a.dims_of(OP)?;
    let [_, n] = b.dims_of(OP)?;
    expect_shape(OP, b, &[k, n])?;
    let mut out = device.alloc(DType::F32, m * n)?;
    let (x, y) = (a.read(), b.read());
    on_device!(device, S, {
        S::matmul_into(x.view()?, y.view()?, out.of::<S>()?, Write::Assign)?
    });
    Ok(Tensor::from_output(out, DType::F32, device, (m, n)))
}

/// `clamp(grad * scale, -max, max)`, in the memory of `grad` if nobody else sees it; `scale` is `[1]`.
pub fn clip_value(grad: Tensor, scale: &Tensor, max: f64) -> Result<Tensor> {
    grad.expect_dtype("clip_value", DType::F32)?;
    let grad = grad.into_owned()?;
    let reading = scale.read();
    grad.write(|storage| {
        on_device!(grad.device, S, {
            S::of_mut(storage)?.clip_value(grad.elem_count(), reading.view()?, max as f32)?
        });
        Ok(())
    })?;
    drop(reading);
    Ok(grad)
}
