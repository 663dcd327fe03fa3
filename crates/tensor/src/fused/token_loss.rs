//! The loss of each token through a linear head: what [`linear_cross_entropy`](super::linear_cross_entropy) sums, for
//! losses that weigh tokens or add up rows (preference training).
//!
//! Shapes: `hidden` `[.., D]`, head `[V, D]`, `labels` i64 with `hidden`'s leading dims, the result f32 of `labels`' shape.
//! Formula: [`CrossEntropyParams`]; 0 where the label is `ignore_index`.
//! Memory: logits are held for a chunk of tokens at a time; the backward pass makes them a second time, since only then it
//! is known what each token's loss counts.
//! Errors: a label that is neither below `V` nor `ignore_index`.

use candle_core::DType;
use tt_cpu::{CrossEntropyParams, FusedOps, Write};

use crate::device::{Backend, Output, Storage, common_device, on_device};
use crate::error::Result;
use crate::fused::head::Head;
use crate::fused::{alloc_like, expect_shape, finish};
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// The loss of each token, f32 of `labels`' shape, tracked; 0 where the label is `params.ignore_index`.
///
/// `hidden` `[.., D]`, `head` `[V, D]` (with a bias `[V]` or without), `labels` i64 `[..]`.
pub fn linear_token_losses(
    hidden: &Tensor,
    head: &(impl Into<Head> + Clone),
    labels: &Tensor,
    params: CrossEntropyParams,
) -> Result<Tensor> {
    const OP: &str = "linear_token_losses";
    let head: Head = head.clone().into();
    let device = common_device(OP, &[hidden.device, head.weight.device, labels.device])?;
    let (hidden, weight) = head.without_bias(OP, hidden)?;
    let [_, dim] = weight.dims_of(OP)?;
    let mut expected = labels.dims().to_vec();
    expected.push(dim);
    expect_shape(OP, &hidden, &expected)?;
    labels.expect_dtype(OP, DType::I64)?;
    let labels = labels.contiguous()?;

    let mut losses = device.alloc(DType::F32, labels.elem_count())?;
    on_device!(device, S, {
        let (hr, wr, lr) = (hidden.read(), weight.read(), labels.read());
        let losses = losses.of::<S>()?;
        S::linear_token_losses(&params, hr.view()?, wr.view()?, lr.view()?, losses)?
    });
    let losses = Tensor::from_output(losses, DType::F32, device, labels.shape().clone());
    let (hidden_saved, weight_saved) = (hidden.detach(), Saved::new(&weight));
    record(OP, &[&hidden, &weight], losses, move |g| {
        let upstream = g.output().contiguous()?;
        let weight = weight_saved.get();
        let mut dhidden = g.wanted(0).then(|| alloc_like(&hidden_saved)).transpose()?;
        let pass = |dhidden: Option<&mut Output>, dweight: Option<(&mut Storage, Write)>| {
            let (hr, wr) = (hidden_saved.read(), weight.read());
            let (lr, ur) = (labels.read(), upstream.read());
            on_device!(device, S, {
                let dhidden = dhidden.map(|out| out.of::<S>()).transpose()?;
                let dweight = match dweight {
                    Some((out, write)) => Some((S::of_mut(out)?, write)),
                    None => None,
                };
                S::linear_token_losses_backward(
                    &params,
                    hr.view()?,
                    wr.view()?,
                    lr.view()?,
                    ur.view()?,
                    dhidden,
                    dweight,
                )?
            });
            Ok(())
        };
        if g.wanted(1) {
            g.write(1, &weight, |dweight, write| {
                pass(dhidden.as_mut(), Some((dweight, write)))
            })?;
        } else {
            pass(dhidden.as_mut(), None)?;
        }
        match dhidden {
            Some(dhidden) => g.add(0, finish(dhidden, &hidden_saved)),
            None => Ok(()),
        }
    })
}

/// `log p(target)` of each token, f32 of `targets`' shape, tracked; 0 where the target is `ignore_index`. Sums over a row
/// are the log-probability of its answer.
///
/// Shapes and memory are those of [`linear_token_losses`].
pub fn linear_log_probs(
    hidden: &Tensor,
    head: &(impl Into<Head> + Clone),
    targets: &Tensor,
    ignore_index: i64,
) -> Result<Tensor> {
    let params = CrossEntropyParams {
        ignore_index,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    linear_token_losses(hidden, head, targets, params)?.neg()
}
