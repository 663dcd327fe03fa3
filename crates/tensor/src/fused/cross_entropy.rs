//! The language-model loss: a linear head and cross-entropy in one, in chunks of rows.
//!
//! Shapes: `hidden` `[.., D]`, head `[V, D]` (and its bias `[V]`), `labels` i64 with `hidden`'s leading dims; `ignore_index`
//! marks rows without loss.
//! Products are of `hidden`'s type, the logits f32. The whole logits are never held: while a chunk's logits are at hand, the gradients of the summed loss are
//! computed too, so the backward pass only scales them.

use candle_core::DType;
use tt_cpu::{CrossEntropyParams, FusedOps};

use crate::device::{Backend, common_device, on_device};
use crate::error::Result;
use crate::fused::head::Head;
use crate::fused::{alloc_like, expect_shape, finish};
use crate::tape::{loss_scale, record};
use crate::tensor::Tensor;

/// What [`linear_cross_entropy`] gives, all still on the device.
pub struct CrossEntropy {
    /// Summed loss over the valid rows, `[]`, tracked.
    pub sum: Tensor,
    /// Number of valid rows, f32 `[]`.
    pub count: Tensor,
    /// Sum over valid rows of `logsumexp(logits)^2`, `[]`.
    pub lse_squares: Tensor,
}

/// The loss of a language model: a linear head and cross-entropy in one, summed over the tokens that have a label.
///
/// Shapes: `hidden` `[.., D]`, `head` `[V, D]` (with a bias `[V]` or without), `labels` i64 with `hidden`'s leading dims.
/// A token's loss is `logsumexp(z) - (1 - s) z[label] - s mean(z) + w logsumexp(z)^2` for logits `z`, smoothing `s` and
/// z-loss `w` ([`CrossEntropyParams`]); tokens whose label is `ignore_index` have none.
///
/// Products are of `hidden`'s type, logits f32. Logits are held for a chunk of tokens at a time; the gradients are made
/// with them, and the backward pass only scales those. So the gradient must be that of the sum: weigh tokens with
/// [`linear_token_losses`](super::linear_token_losses) instead.
///
/// Errors: shapes, types or devices that do not fit; a label that is neither below `V` nor `ignore_index`.
pub fn linear_cross_entropy(
    hidden: &Tensor,
    head: &(impl Into<Head> + Clone),
    labels: &Tensor,
    params: CrossEntropyParams,
) -> Result<CrossEntropy> {
    const OP: &str = "linear_cross_entropy";
    let head: Head = head.clone().into();
    let device = common_device(OP, &[hidden.device, head.weight.device, labels.device])?;
    let (hidden, weight) = head.without_bias(OP, hidden)?;
    let [_, dim] = weight.dims_of(OP)?;
    let mut expected = labels.dims().to_vec();
    expected.push(dim);
    expect_shape(OP, &hidden, &expected)?;
    labels.expect_dtype(OP, DType::I64)?;
    let labels = labels.contiguous()?;

    let scale = loss_scale(&[&hidden, &weight]);
    let mut totals = device.alloc(DType::F32, 3)?;
    let mut dhidden = hidden
        .is_tracked()
        .then(|| alloc_like(&hidden))
        .transpose()?;
    let mut dweight = weight
        .is_tracked()
        .then(|| alloc_like(&weight))
        .transpose()?;
    on_device!(device, S, {
        let (hr, wr, lr) = (hidden.read(), weight.read(), labels.read());
        let dhidden = dhidden.as_mut().map(|out| out.of::<S>()).transpose()?;
        let dweight = dweight.as_mut().map(|out| out.of::<S>()).transpose()?;
        S::linear_cross_entropy(
            &params,
            scale,
            hr.view()?,
            wr.view()?,
            lr.view()?,
            totals.of::<S>()?,
            dhidden,
            dweight,
        )?
    });
    let totals = Tensor::from_output(totals, DType::F32, device, 3);
    let pick = |i| totals.narrow(0, i, 1)?.reshape(());
    let dhidden = dhidden.map(|out| finish(out, &hidden));
    let dweight = dweight.map(|out| finish(out, &weight));
    let sum = record(OP, &[&hidden, &weight], pick(0)?, move |g| {
        let upstream = g.output();
        for (input, grad) in [dhidden, dweight].into_iter().enumerate() {
            if let Some(grad) = grad {
                scale_in_place(&grad, 1.0 / scale, &upstream)?;
                g.add(input, grad)?;
            }
        }
        Ok(())
    })?;
    Ok(CrossEntropy {
        sum,
        count: pick(1)?,
        lse_squares: pick(2)?,
    })
}

/// `x *= alpha * factor`, `factor` a scalar tensor that stays on the device.
fn scale_in_place(x: &Tensor, alpha: f32, factor: &Tensor) -> Result<()> {
    let reading = factor.read();
    x.write(|storage| {
        on_device!(x.device, S, {
            let factor = Some(reading.view::<S>()?);
            S::of_mut(storage)?.scale(x.elem_count(), alpha, factor)?
        });
        Ok(())
    })
}
