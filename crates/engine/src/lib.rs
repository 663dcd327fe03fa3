//! What is done with a trained model: a prompt in, tokens out one by one, with a key/value cache if the model keeps one;
//! likelihoods of given continuations; texts as vectors.
//!
//! Sampling draws from counter-based randomness: the same prompt, seed and weights give the same text.

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod batching;
mod embed;
mod reader;
mod sampler;
mod score;

use tt_models::{Generation, Model};
use tt_nn::ParamTree;

use crate::reader::Reader;

pub use embed::{Embedding, Pooling, embed};
pub use sampler::{Sampler, Sampling};
pub use score::{Request, score};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the prompt has {prompt} tokens, but the model allows {max}")]
    PromptTooLong { prompt: usize, max: usize },
    #[error(
        "the model gives no likelihoods after {after} new tokens, but {found}: its weights are of no use"
    )]
    NotFinite { after: usize, found: f32 },
    #[error("the model gives {found} where a number is due: its weights are of no use")]
    BadNumber { found: f32 },
    #[error("this model's attention looks ahead: it has no likelihood for what follows a text")]
    CannotScore,
    #[error("{model} cannot continue a text")]
    CannotGenerate { model: String },
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
    /// Each of these ends generation and is not part of the result.
    pub ends: Vec<u32>,
}

/// Continues `prompt` and returns the new tokens. Errors: an empty prompt, one longer than the model allows, a
/// model that generates nothing or NaN.
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
    if model.generation() == Generation::Unable {
        let config = model.hf_config();
        let class = config["architectures"][0].as_str();
        let model = class.unwrap_or("this model").to_owned();
        return Err(Error::CannotGenerate { model });
    }
    let max = model.max_positions();
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if prompt.len() > max {
        let prompt = prompt.len();
        return Err(Error::PromptTooLong { prompt, max });
    }
    let mut reader = Reader::new(model, params)?;
    let (mut text, mut new_tokens) = (prompt.to_vec(), Vec::new());
    let room = max - prompt.len();
    while new_tokens.len() < limits.max_new_tokens {
        let logits = reader.logits(&text)?;
        // -inf rules a token out; anything else that is not finite leaves nothing to choose by.
        if let Some(&found) = logits.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
            let after = new_tokens.len();
            return Err(Error::NotFinite { after, found });
        }
        let token = sampler.choose(&logits);
        if limits.ends.contains(&token) {
            break;
        }
        new_tokens.push(token);
        if new_tokens.len() > room || !go_on(token) {
            break;
        }
        text.push(token);
    }
    Ok(new_tokens)
}
