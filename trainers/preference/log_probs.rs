//! Log-probabilities of answers, a row each, through the fused head: no logits are held whole.

use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::{Tensor, fused};
use tt_train::{DeviceBatch, IGNORE, Result};

/// What a model makes of the answers of a batch.
pub(super) struct Answers {
    /// `log p` of each row's answer, summed over its tokens: f32 `[B]`, tracked; 0 where there is none.
    pub(super) log_probs: Tensor,
    /// Tokens of each answer: f32 `[B]`.
    pub(super) tokens: Tensor,
}

impl Answers {
    pub(super) fn of(fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Self> {
        let hidden = model.hidden_states(fwd, &batch.input)?; // [B, T, hidden]
        let head = model.output(fwd)?;
        let log_probs = fused::linear_log_probs(&hidden, &head, &batch.targets, IGNORE)?; // [B, T]
        let (_, counts) = batch.target_ids()?; // [B, T]
        Ok(Self {
            log_probs: log_probs.sum(&[1])?,
            tokens: counts.sum(&[1])?,
        })
    }
}
