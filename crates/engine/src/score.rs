//! The log-likelihood of given continuations: what multiple-choice questions are answered by.
//!
//! A request is a row of tokens of which the last few are scored: `sum of log p(token | all before it)`, in nats. The head is
//! computed at scored places alone, and logits are held for some tokens at a time ([`fused::linear_log_probs`]).
//! Errors: a model that looks ahead, a request without a token before the scored ones or longer than the model takes, a result
//! that is not finite.

use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_tensor::{DType, Precision, Tensor, fused};

use crate::batching::{batches, input};
use crate::{Error, Result};

/// A label that no token has.
const NONE: i64 = -100;

/// Tokens of which the last are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is read, and after it what is scored.
    pub ids: Vec<u32>,
    /// How many of the last are scored.
    pub scored: usize,
}

/// The log-likelihood of each request's continuation. Batches are of at most `batch_tokens`, if that is more
/// than one request.
pub fn score(
    model: &dyn Model,
    params: &ParamTree,
    precision: Precision,
    requests: &[Request],
    batch_tokens: usize,
) -> Result<Vec<f64>> {
    if !model.is_causal() {
        return Err(Error::CannotScore);
    }
    let max = model.max_positions();
    for Request { ids, scored } in requests {
        if ids.len() <= *scored {
            return Err(Error::EmptyPrompt);
        }
        if ids.len() - 1 > max {
            let prompt = ids.len() - 1;
            return Err(Error::PromptTooLong { prompt, max });
        }
    }
    let fwd = Forward::inference(params).with_precision(precision);
    let head = model.output(&fwd)?;
    let device = head.weight.device();
    let mut scores = vec![0.0; requests.len()];
    // The last token is predicted and not read.
    let read = |i: usize| &requests[i].ids[..requests[i].ids.len() - 1];
    let lengths: Vec<usize> = (0..requests.len()).map(|i| read(i).len()).collect();
    for batch in batches(&lengths, usize::MAX, batch_tokens) {
        let rows: Vec<&[u32]> = batch.iter().map(|&i| read(i)).collect();
        let input = input(&rows, device)?;
        let hidden = model.hidden_states(&fwd, &input)?; // [B, T, hidden]
        let [b, t, width] = hidden.dims_of("score")?;
        let (mut places, mut targets) = (Vec::new(), Vec::new());
        for (row, &i) in batch.iter().enumerate() {
            let Request { ids, scored } = &requests[i];
            let start = ids.len() - scored;
            places.extend((start - 1..ids.len() - 1).map(|at| (row * t + at) as u32));
            targets.extend(ids[start..].iter().map(|&id| i64::from(id)));
        }
        if places.is_empty() {
            continue;
        }
        let count = places.len();
        let places = Tensor::from_slice(&places, count, device)?;
        let targets = Tensor::from_slice(&targets, count, device)?;
        let hidden = hidden.reshape((b * t, width))?.index_select(&places, 0)?; // [N, hidden]
        let log_probs = fused::linear_log_probs(&hidden, &head, &targets, NONE)?;
        let log_probs = log_probs.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let mut rest = &log_probs[..];
        for &i in &batch {
            let (own, after) = rest.split_at(requests[i].scored);
            rest = after;
            scores[i] = own.iter().map(|&p| f64::from(p)).sum();
            if !scores[i].is_finite() {
                let found = scores[i] as f32;
                return Err(Error::BadNumber { found });
            }
        }
    }
    Ok(scores)
}
