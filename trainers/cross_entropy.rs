//! The cross-entropy of a batch's targets, which the loss of several trainers is.

use tt_tensor::{CrossEntropyParams, Tensor, fused};
use tt_train::{DeviceBatch, Loss, Result};

/// Of `hidden` `[B, T, hidden]` through `head`, summed over the targets. Where the batch has weights each target counts by its
/// weight, and the sum is divided by theirs.
pub(crate) fn cross_entropy(
    hidden: &Tensor,
    head: &fused::Head,
    batch: &DeviceBatch,
    params: CrossEntropyParams,
) -> Result<Loss> {
    let (sum, weight) = match batch.weights() {
        Some(weights) => {
            let losses = fused::linear_token_losses(hidden, head, &batch.targets, params)?; // [B, T]
            (losses.mul(weights)?.sum_all()?, weights.sum_all()?)
        }
        None => {
            let loss = fused::linear_cross_entropy(hidden, head, &batch.targets, params)?;
            (loss.sum, loss.count)
        }
    };
    Ok(Loss {
        sum,
        weight,
        scalars: Vec::new(),
    })
}
