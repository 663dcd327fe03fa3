//! Generation: a prompt in, tokens out one by one, with a key/value cache.
//!
//! Sampling draws from counter-based randomness: the same prompt, seed and weights give the same text.

mod sampler;

use tt_models::{Input, Model};
use tt_nn::{Forward, KvCache, ParamTree};
use tt_tensor::Tensor;

pub use sampler::{Sampler, Sampling};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the prompt has {prompt} tokens, but the model allows {max}")]
    PromptTooLong { prompt: usize, max: usize },
    #[error(transparent)]
    Model(#[from] tt_models::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

/// When generation ends besides at the model's longest sequence.
#[derive(Clone, Debug)]
pub struct Limits {
    pub max_new_tokens: usize,
    /// Ends generation and is not part of the result.
    pub eos: Option<u32>,
}

/// Continues `prompt` and returns the new tokens. Errors: an empty prompt, one longer than the model allows.
pub fn generate(
    model: &dyn Model,
    params: &ParamTree,
    prompt: &[u32],
    sampler: &mut Sampler,
    limits: &Limits,
) -> Result<Vec<u32>> {
    generate_while(model, params, prompt, sampler, limits, |_| true)
}

/// [`generate`] that shows each new token to `go_on`, and ends where that is false.
pub fn generate_while(
    model: &dyn Model,
    params: &ParamTree,
    prompt: &[u32],
    sampler: &mut Sampler,
    limits: &Limits,
    mut go_on: impl FnMut(u32) -> bool,
) -> Result<Vec<u32>> {
    let max = model.max_positions();
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if prompt.len() > max {
        let prompt = prompt.len();
        return Err(Error::PromptTooLong { prompt, max });
    }
    let cache = KvCache::new();
    let fwd = Forward::inference(params).with_cache(&cache);
    let device = model.head(&fwd)?.device();
    let mut new_tokens = Vec::new();
    let mut next = prompt.to_vec();
    let room = max - prompt.len();
    while new_tokens.len() < limits.max_new_tokens {
        let ids = Tensor::from_slice(&next, (1, next.len()), device)?;
        let input = Input::continuing(ids, cache.len())?;
        let hidden = model.hidden_states(&fwd, &input)?; // [1, T, hidden]
        let last = hidden.narrow(1, next.len() - 1, 1)?;
        let logits = tt_tensor::fused::logits(&last, &model.head(&fwd)?)?; // [1, 1, vocab]
        let token = sampler.choose(&logits.to_vec::<f32>()?);
        if limits.eos == Some(token) {
            break;
        }
        new_tokens.push(token);
        if new_tokens.len() > room || !go_on(token) {
            break;
        }
        next = vec![token];
    }
    Ok(new_tokens)
}
