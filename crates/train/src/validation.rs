//! What is looked at on the way: the validation loss, and continuations of validation rows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tt_collators::{Batch, Pipeline};
use tt_engine::{Limits, Sampler, Sampling, generate_while};
use tt_metrics::{Sample, Scalars};
use tt_models::{Generation, Model};
use tt_nn::Forward;
use tt_tensor::{CrossEntropyParams, Seed, Tensor, fused};

use crate::config::SampleConfig;
use crate::device_batch::DeviceBatch;
use crate::error::Result;
use crate::step::sum_counts;
use crate::stop::StopFlag;
use crate::totals::Totals;
use crate::training::Training;
use crate::{IGNORE, Loss, Trainer};

/// What a pass over the validation split gives.
pub(crate) struct Validation {
    /// Mean cross-entropy, each target weighing the same; the objective where there are no targets.
    pub loss: f32,
    /// What the trainer reports besides, by the names it is logged under.
    pub scalars: Scalars,
    /// Of a mixture the loss of each part, by its number.
    pub of_parts: Vec<(usize, f32)>,
}

/// Looks at `batches` without learning from them; `None` if the run is to stop.
pub(crate) fn validate(
    training: &Training,
    trainer: &dyn Trainer,
    batches: &[Batch],
    stop: &StopFlag,
) -> Result<Option<Validation>> {
    let fwd = Forward::inference(&training.params).with_precision(training.precision);
    let (mut totals, mut cross_entropies) = (None, None);
    let mut of_parts: BTreeMap<usize, Totals> = BTreeMap::new();
    let add = |totals: Option<Totals>, part: Loss| match totals {
        None => Ok(Totals::new(part, 1.0)),
        Some(so_far) => so_far.plus(part),
    };
    let reduce = &*training.reduce;
    // Every rank has all of the batches.
    let counts = sum_counts(batches.iter(), |batch| trainer.counts(batch));
    for batch in reduce.share().of(batches) {
        if reduce.is_stopped(stop.is_requested())? {
            return Ok(None);
        }
        let part = batch.part;
        let batch = DeviceBatch::upload(&batch, training.device)?.with_counts(&counts);
        let loss = trainer.loss(&fwd, &*training.model, &batch)?.checked()?;
        let sums = |loss: &Loss| Loss {
            sum: loss.sum.clone(),
            weight: loss.weight.clone(),
            scalars: Vec::new(),
        };
        let mut of_part = sums(&loss);
        totals = Some(add(totals, loss)?);
        if !trainer.validates_by_cross_entropy() {
            let loss = cross_entropy(&fwd, &*training.model, &batch)?;
            of_part = sums(&loss);
            cross_entropies = Some(add(cross_entropies, loss)?);
        }
        if let Some(part) = part {
            let so_far = of_parts.remove(&part);
            of_parts.insert(part, add(so_far, of_part)?);
        }
        reduce.end_pass();
    }
    reduce.forget();
    // Another rank may have batches of parts of which this has none.
    for part in batches.iter().filter_map(|batch| batch.part) {
        if let Entry::Vacant(vacant) = of_parts.entry(part) {
            vacant.insert(Totals::zero(training.device)?);
        }
    }
    let all = totals.iter_mut().chain(&mut cross_entropies);
    for sums in all.chain(of_parts.values_mut()) {
        reduce.totals(sums)?;
    }
    let Some(totals) = totals else {
        return Ok(Some(Validation {
            loss: f32::NAN,
            scalars: Scalars::new(),
            of_parts: Vec::new(),
        }));
    };
    let objective = totals.mean()?.unwrap_or(f32::NAN);
    let mut scalars = Scalars::new();
    let loss = match cross_entropies.map(|it| it.mean()).transpose()?.flatten() {
        None => objective,
        Some(cross_entropy) => {
            scalars.insert("val_objective".to_owned(), objective.into());
            cross_entropy
        }
    };
    let named = totals
        .read(&Tensor::zeros(1, training.device)?)?
        .scalars
        .into_iter();
    scalars.extend(named.map(|(name, value)| (format!("val_{name}"), value.into())));
    let mut losses = Vec::new();
    for (part, totals) in of_parts {
        if let Some(loss) = totals.mean()? {
            losses.push((part, loss));
        }
    }
    Ok(Some(Validation {
        loss,
        scalars,
        of_parts: losses,
    }))
}

/// Of the targets, each weighing the same.
pub(crate) fn cross_entropy(fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
    let hidden = model.hidden_states(fwd, &batch.input)?; // [B, T, hidden]
    let params = CrossEntropyParams {
        ignore_index: IGNORE,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let head = model.output(fwd)?;
    let loss = fused::linear_cross_entropy(&hidden, &head, &batch.targets, params)?;
    Ok(Loss {
        sum: loss.sum,
        weight: loss.count,
        scalars: Vec::new(),
    })
}

/// Continuations of the first rows of the validation split, the same prompts every time; none further once the run is
/// to stop.
pub(crate) fn sample(
    training: &Training,
    data: &Pipeline,
    config: &SampleConfig,
    ends: Vec<u32>,
    stop: &StopFlag,
) -> Result<Vec<Sample>> {
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
        // Of several ranks all see the same tokens, as they have gathered the same weights, and stop at the same one.
        let mut stopped = Ok(false);
        let go_on = |_| {
            stopped = training.reduce.is_stopped(stop.is_requested());
            matches!(stopped, Ok(false))
        };
        let tokens = generate_while(model, params, prompt, &mut sampler, &limits, go_on);
        training.reduce.forget();
        let tokens = tokens?;
        if stopped? {
            break;
        }
        shown.push(Sample {
            step: training.step,
            prompt: tokenizer.decode(prompt)?,
            continuation: tokenizer.decode_continuation(prompt, &tokens)?,
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
