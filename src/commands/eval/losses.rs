//! The loss over splits and sources of data, by the objective of a trainer.

use std::collections::BTreeMap;

use anyhow::anyhow;
use serde::Serialize;
use tt_collators::{LeftOut, Pipeline, PipelineOptions};
use tt_config::{Composition, Diagnostics};
use tt_data::{DataConfig, TokenBytes, TokenCacheConfig, Tokenizer};
use tt_optimizers::Optimizers;
use tt_report::number;
use tt_tensor::Seed;
use tt_train::{Evaluation, Tally, TrainState, Trainer, Training, count, look};
use tt_trainers::LMTrainer;

use super::config::{EvalConfig, SplitName};
use super::subject::{Recorded, Subject, nothing_to_do};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::plugins::Plugins;
use crate::setup::{
    before_first_step, build_trainer, fetch_tokenizer, located, open_pipeline, problem,
};

/// The trainer of a model that comes without one.
const LM: &str = "lm_trainer.LMTrainer";

/// What a split, or a source of one, has given.
pub(super) struct Measured {
    split: &'static str,
    /// `None`: all of it.
    source: Option<String>,
    evaluation: Evaluation,
}

/// All of them.
pub(super) struct Losses {
    pub(super) rows: Vec<Measured>,
    pub(super) trainer: String,
}

pub(super) fn measure(
    config: &EvalConfig,
    subject: &Subject,
    recorded: Option<&Recorded>,
    invocation: &Invocation,
) -> Result<Losses, Failure> {
    let data = open_data(config, subject, recorded, invocation)?;
    let (kind, trainer) = open_trainer(config, subject, recorded, invocation)?;
    let (training, trainer) = prepare(config, subject, recorded, &invocation.plugins, trainer)?;
    let bytes = TokenBytes::of(data.tokenizer());
    let names: Vec<&str> = data.validation_parts().collect();
    let mut rows = Vec::new();
    for &split in &config.splits {
        let mut of_all = Tally::default();
        let mut of_parts: Vec<Tally> = names.iter().map(|_| Tally::default()).collect();
        let mut left_out = LeftOut::default();
        let is_endless = split == SplitName::Train && config.max_batches.is_none();
        // Most trainers have nothing to count, and say so of the first batch.
        let mut counts = Vec::new();
        let counted = data.look_through(split.into(), config.max_batches, |batch| {
            count(&*trainer, batch, &mut counts);
            Ok::<_, tt_train::Error>(!counts.is_empty())
        });
        let looked = counted.and_then(|()| {
            data.look_through(split.into(), config.max_batches, |batch| {
                let look = look(&training, &*trainer, batch, &counts, &bytes)?;
                left_out += batch.left_out;
                of_all.add(&look)?;
                if let Some(part) = batch.part {
                    of_parts[part].add(&look)?;
                }
                Ok(true)
            })
        });
        looked.map_err(|error| match error {
            tt_train::Error::Data(error @ tt_data::DataError::Other(_)) if is_endless => {
                Failure::Request(anyhow!("{error}: say how much of it, with max_batches=100"))
            }
            error => error.into(),
        })?;
        if let Some(said) = left_out.describe(data.sequence_length()) {
            out::error_line(format_args!("warning: {}: {said}", split.name()));
        }
        let of_parts = of_parts.iter().zip(&names);
        let of_parts = of_parts.map(|(tally, &name)| (Some(name.to_owned()), tally));
        for (source, tally) in of_parts.chain([(None, &of_all)]) {
            match tally.evaluation()? {
                Some(evaluation) => rows.push(Measured {
                    split: split.name(),
                    source,
                    evaluation,
                }),
                None if source.is_none() => {
                    let split = split.name();
                    let why = format!("there is nothing to predict in the split `{split}`");
                    return Err(Failure::Request(anyhow!(why)));
                }
                None => {}
            }
        }
    }
    Ok(Losses {
        rows,
        trainer: kind,
    })
}

/// What the configuration chooses, else what the run was trained on, made into batches with the model's own tokenizer.
fn open_data(
    config: &EvalConfig,
    subject: &Subject,
    recorded: Option<&Recorded>,
    invocation: &Invocation,
) -> Result<Pipeline, Failure> {
    let (composition, data, seed) = match (&config.data, recorded) {
        (Some(data), _) => (&invocation.composition, data, config.seed),
        (None, Some(run)) => (&run.composition, &run.config.data, run.config.seed),
        (None, None) => return Err(nothing_to_do(&config.checkpoint)),
    };
    let mut data: DataConfig = data.clone();
    if config.data.is_none() {
        data.tokenizer.path = None; // the checkpoint has it, and the file may have gone
    }
    fetch_tokenizer(&mut data, composition)?;
    if let Some(blocks) = config.num_val_blocks {
        data.num_val_blocks = blocks;
    }
    data.token_cache = TokenCacheConfig::Switch(false);
    data.start_step = None;
    let stored = &subject.stored;
    tt_train::check_length(data.sequence_length, &*stored.model)
        .map_err(|error| located(composition, error))?;
    let is_configured = data.tokenizer.path.is_some();
    if !is_configured {
        // Said as what is wrong with the checkpoint, which the configuration does not name a tokenizer for.
        stored.tokenizer().map_err(Failure::Request)?;
    }
    let options = PipelineOptions {
        seed,
        micro_batch_size: subject.micro_batch_size,
        sources: invocation.plugins.sources.clone(),
        collators: invocation.plugins.collators.clone(),
        vocab_size: Some(stored.model.vocab_size()),
        tokenizer: Some(stored.tokenizer_origin()),
        ..PipelineOptions::default()
    };
    let opened = open_pipeline(composition, &data, &options)?;
    let used = opened.tokenizer();
    tt_train::check_vocabulary(used.vocab_size(), &*stored.model)
        .map_err(|error| located(composition, error))?;
    if let (true, Ok(own)) = (is_configured, stored.tokenizer()) {
        check_tokenizer(composition, used, &own)?;
    }
    Ok(opened)
}

/// Refuses tokens that mean something else to the model.
fn check_tokenizer(
    composition: &Composition,
    used: &Tokenizer,
    own: &Tokenizer,
) -> Result<(), Failure> {
    const KEY: &str = "data.tokenizer.path";
    if used.has_same_tokens(own) {
        return Ok(());
    }
    let why =
        format!("`{KEY}`: not the tokenizer that the model was trained with; null takes that one");
    Err(Diagnostics::from(problem(composition, KEY, why)).into())
}

fn open_trainer(
    config: &EvalConfig,
    subject: &Subject,
    recorded: Option<&Recorded>,
    invocation: &Invocation,
) -> Result<(String, Box<dyn Trainer>), Failure> {
    let plugins = &invocation.plugins;
    let of_run = recorded.and_then(|it| Some((it, it.config.trainer.as_ref()?)));
    Ok(match (&config.trainer, of_run) {
        (Some(chosen), _) => {
            let trainer = build_trainer(&invocation.composition, plugins)?;
            (chosen.kind.clone(), trainer)
        }
        (None, Some((run, recorded))) => {
            let trainer = build_trainer(&run.composition, plugins)?;
            (recorded.kind.clone(), trainer)
        }
        (None, None) if !subject.stored.model.is_causal() => {
            return Err(Failure::Request(anyhow!(
                "{}: this model does not predict the next token, so say by which objective it is evaluated: trainer=NAME",
                config.checkpoint
            )));
        }
        (None, None) => (LM.to_owned(), Box::new(LMTrainer::new(0.0, 0.0))),
    })
}

/// The trainer as it goes on from a checkpoint: with its own state, if that is a run's of its.
fn prepare(
    config: &EvalConfig,
    subject: &Subject,
    recorded: Option<&Recorded>,
    plugins: &Plugins,
    mut trainer: Box<dyn Trainer>,
) -> Result<(Training, Box<dyn Trainer>), Failure> {
    let stored = &subject.stored;
    let seed = recorded.map_or(config.seed, |it| it.config.seed);
    let mut training = Training::new(
        stored.model.clone(),
        stored.params.clone(),
        Optimizers::new(Vec::new()),
        Seed::new(seed),
        subject.device,
    );
    training.precision = subject.precision;
    if config.trainer.is_none()
        && let Some(state) = TrainState::read_in(&stored.folder)?
    {
        training.step = state.step;
        trainer.restore(&state.trainer)?;
    }
    let adapter = stored.adapter.as_ref().map(|lora| lora.config());
    if let Some(dtype) = trainer.initial_model(adapter)? {
        let Some(run) = recorded.filter(|_| config.trainer.is_none()) else {
            return Err(Failure::Request(anyhow!(
                "{}: this objective compares with the model as it was before the first step, which eval has of a run and its own trainer only; trainer=lm tells the loss of the answers",
                config.checkpoint
            )));
        };
        let (composition, device) = (&run.composition, subject.device);
        training.initial = Some(before_first_step(
            composition,
            plugins,
            seed,
            dtype,
            device,
        )?);
    }
    trainer.post_init(&mut training)?;
    Ok((training, trainer))
}

impl Measured {
    pub(super) fn is_finite(&self) -> bool {
        self.evaluation.loss.is_finite()
    }

    fn perplexity(&self) -> f64 {
        f64::from(self.evaluation.loss).exp()
    }

    pub(super) const HEAD: [&str; 7] = [
        "split",
        "source",
        "loss",
        "perplexity",
        "bits/byte",
        "targets",
        "bytes",
    ];

    /// As [`Measured::HEAD`] has it.
    pub(super) fn cells(&self) -> [String; 7] {
        let it = &self.evaluation;
        let dash = || "-".to_owned();
        let bits = it.text.and_then(|text| text.bits_per_byte());
        [
            self.split.to_owned(),
            self.source.clone().unwrap_or_else(|| "all".to_owned()),
            format!("{:.4}", it.loss),
            number::result(self.perplexity()),
            bits.map_or_else(dash, |bits| format!("{bits:.4}")),
            it.targets.to_string(),
            it.text.map_or_else(dash, |text| text.bytes.to_string()),
        ]
    }

    /// What the trainer says besides, by name.
    pub(super) fn further(&self) -> Vec<(&'static str, f32)> {
        let it = &self.evaluation;
        let objective = it.objective.map(|objective| ("objective", objective));
        objective.into_iter().chain(it.scalars.clone()).collect()
    }

    /// For programs: f32 as short as they can be read back.
    pub(super) fn json(&self) -> LossJson<'_> {
        let it = &self.evaluation;
        LossJson {
            split: self.split,
            source: self.source.as_deref(),
            loss: it.loss,
            objective: it.objective,
            perplexity: self.perplexity(),
            bits_per_byte: it.text.and_then(|text| text.bits_per_byte()),
            targets: it.targets,
            text_tokens: it.text.map(|text| text.tokens),
            text_bytes: it.text.map(|text| text.bytes),
            batches: it.batches,
            scalars: it.scalars.iter().copied().collect(),
        }
    }
}

/// A row for programs.
#[derive(Serialize)]
pub(super) struct LossJson<'a> {
    split: &'static str,
    /// Null: all.
    source: Option<&'a str>,
    loss: f32,
    objective: Option<f32>,
    perplexity: f64,
    bits_per_byte: Option<f64>,
    targets: u64,
    text_tokens: Option<u64>,
    text_bytes: Option<u64>,
    batches: u64,
    scalars: BTreeMap<&'static str, f32>,
}
