//! What is looked at on the way: the validation loss, and continuations of validation rows.

use std::fmt;

use tt_collators::{Batch, Pipeline};
use tt_engine::{Limits, Sampler, Sampling, generate_while};
use tt_models::Generation;
use tt_nn::Forward;
use tt_tensor::{Seed, Tensor};

use crate::config::SampleConfig;
use crate::device_batch::DeviceBatch;
use crate::error::Result;
use crate::stop::StopFlag;
use crate::training::Training;
use crate::{Loss, Trainer};

/// Mean loss over `batches`, each token weighing the same; `None` if the run is to stop.
pub(crate) fn validate(
    training: &Training,
    trainer: &dyn Trainer,
    batches: &[Batch],
    stop: &StopFlag,
) -> Result<Option<f32>> {
    let fwd = Forward::inference(&training.params).with_precision(training.precision);
    let mut totals: Option<(Tensor, Tensor)> = None;
    for batch in batches {
        if stop.is_requested() {
            return Ok(None);
        }
        let batch = DeviceBatch::upload(batch, training.device)?;
        let Loss { sum, weight, .. } = trainer.loss(&fwd, &*training.model, &batch)?;
        totals = Some(match totals {
            None => (sum, weight),
            Some((sums, weights)) => (sums.add(&sum)?, weights.add(&weight)?),
        });
    }
    match totals {
        Some((sum, weight)) => Ok(Some(sum.div(&weight)?.to_scalar::<f32>()?)),
        None => Ok(Some(f32::NAN)),
    }
}

/// A prompt from the validation split and what the model makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    pub prompt: String,
    pub text: String,
}

impl fmt::Display for Continuation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "> {} ||{}", self.prompt, self.text)
    }
}

/// Continuations of the first rows of the validation split, the same prompts every time; none further once the run is
/// to stop.
pub(crate) fn sample(
    training: &Training,
    data: &Pipeline,
    config: &SampleConfig,
    ends: Vec<u32>,
    stop: &StopFlag,
) -> Result<Vec<Continuation>> {
    if training.model.generation() == Generation::Unable {
        return Ok(Vec::new());
    }
    let tokenizer = data.tokenizer();
    let sampling = match config.temperature {
        0.0 => Sampling::Greedy,
        temperature => Sampling::Nucleus {
            temperature,
            top_p: config.top_p,
        },
    };
    let limits = Limits {
        max_new_tokens: config.max_new_tokens,
        ends,
    };
    let mut shown = Vec::new();
    for (i, prompt) in prompts(data.validation(), config).into_iter().enumerate() {
        let seed = Seed::new(0).fold_str("samples").fold(i as u64);
        let mut sampler = Sampler::new(sampling, seed);
        let (model, params) = (&*training.model, &training.params);
        let go_on = |_| !stop.is_requested();
        let tokens = generate_while(model, params, prompt, &mut sampler, &limits, go_on)?;
        if stop.is_requested() {
            break;
        }
        shown.push(Continuation {
            prompt: tokenizer.decode(prompt)?,
            text: tokenizer.decode_continuation(prompt, &tokens)?,
        });
    }
    Ok(shown)
}

/// The beginnings of the first documents long enough to be continued.
fn prompts<'a>(batches: &'a [Batch], config: &SampleConfig) -> Vec<&'a [u32]> {
    let mut prompts = Vec::new();
    // A row's first segment is the rest of a document if the row before is full.
    let mut continues = false;
    for batch in batches {
        let ids = batch.input_ids.chunks(batch.seq_len);
        for (ids, segments) in ids.zip(batch.segment_ids.chunks(batch.seq_len)) {
            let mut start = 0;
            for segment in segments.chunk_by(|a, b| a == b) {
                let document = &ids[start..start + segment.len()];
                let whole = segment[0] != 0 && !(start == 0 && continues);
                if whole && document.len() / 2 >= config.prompt_tokens {
                    prompts.push(&document[..config.prompt_tokens]);
                }
                start += segment.len();
            }
            continues = segments.last().is_some_and(|&segment| segment != 0);
        }
    }
    prompts.truncate(config.count);
    prompts
}
