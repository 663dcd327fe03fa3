//! A training run from its first step to its last checkpoint.
//!
//! Order of events after a step: its row is logged, then validation, checkpoint, samples, so that a
//! checkpoint implies the rows up to its step, a resumed run writes the rows it would have written, and
//! nothing for show can lose what was trained.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tt_checkpoint::{Checkpoint, Saved, Writer};
use tt_collators::{Batch, Loader, Pipeline};
use tt_metrics::{Metrics, Scalars, StepRecord, ValRecord};
use tt_models::Model;
use tt_nn::{ParamTree, Recompute};
use tt_optimizers::Optimizers;
use tt_tensor::{Device, Precision, Seed};

use crate::Trainer;
use crate::adapted::Adapted;
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::guard::{StepGuard, Verdict};
use crate::state::{self, TrainState};
use crate::training::{StepOutput, Training};
use crate::validation::{Continuation, sample, validate};

/// Asks a run to save and end after the step it is in. Shared with whoever may ask.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// All that a run needs, already lowered from configuration.
pub struct TrainJob {
    pub model: Arc<dyn Model>,
    /// Initial parameters; replaced by the checkpoint's when resuming.
    pub params: ParamTree,
    pub trainer: Box<dyn Trainer>,
    pub optimizers: Optimizers,
    pub config: TrainerConfig,
    pub data: Pipeline,
    pub device: Device,
    pub precision: Precision,
    pub seed: u64,
    /// Modules that are run again in the backward pass.
    pub recompute: Option<Arc<dyn Recompute>>,
    /// The adapter in `params`, if one is trained.
    pub adapter: Option<Adapted>,
    /// Goes on from here. `params` must have been loaded from it.
    pub resume: Option<Checkpoint>,
    pub stop: StopFlag,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// Saved and stopped on request; the same command goes on.
    Stopped,
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Outcome {
    pub ending: Ending,
    pub step: u64,
    /// Mean nats per token on the validation split at the end; `None` if stopped early.
    pub final_val_loss: Option<f32>,
    /// Folder of the last checkpoint.
    pub checkpoint: PathBuf,
    /// Over this process's steps, without validation and checkpoints.
    pub tokens_per_second: f64,
    pub continuations: Vec<Continuation>,
}

impl TrainJob {
    /// Everything that may refuse the run: afterwards it is safe to touch its folder. Nothing is written.
    pub fn prepare(self) -> Result<Prepared> {
        let TrainJob {
            model,
            params,
            mut trainer,
            optimizers,
            config,
            data,
            device,
            precision,
            seed,
            recompute,
            adapter,
            resume,
            stop,
        } = self;
        check(&config, &data, &*model)?;
        let mut training = Training::new(model, params, optimizers, Seed::new(seed), device);
        training.clipping = config.clipping();
        training.metrics_interval = config.optimizer_metrics.then_some(config.log_interval);
        training.recompute = recompute;
        training.precision = precision;
        training.adapter = adapter;
        training.guard = StepGuard::new(&config.bad_steps, &config.spike_guard);
        if precision == Precision::F16 {
            training.guard = training.guard.with_loss_scale(&config.loss_scale);
        }
        let (mut tokens, mut cursor, mut validated) = (0, None, None);
        if let Some(checkpoint) = &resume {
            let state = state::restore(&mut training, &mut *trainer, checkpoint)?;
            if state.seed != seed {
                let why = format!("made with seed {}, this run has {seed}", state.seed);
                return Err(Error::State(why));
            }
            (tokens, cursor) = (state.tokens, Some(state.cursor));
            validated = state.validated;
        }
        trainer.post_init(&mut training)?;
        Ok(Prepared {
            loader: data.train(cursor)?,
            cursor: cursor.unwrap_or_default(),
            tokens,
            validated,
            training,
            trainer,
            config,
            data,
            stop,
            seed,
            resume,
        })
    }
}

/// A run that nothing stands against any more.
pub struct Prepared {
    training: Training,
    trainer: Box<dyn Trainer>,
    config: TrainerConfig,
    data: Pipeline,
    loader: Loader,
    tokens: u64,
    cursor: tt_data::Cursor,
    validated: Option<(u64, f32)>,
    stop: StopFlag,
    seed: u64,
    resume: Option<Checkpoint>,
}

impl Prepared {
    /// Trains, keeping `checkpoints/` and `tokenizer/` in `run_dir`. Errors leave the checkpoints written so far.
    pub fn run(self, run_dir: &Path, metrics: Metrics) -> Result<Outcome> {
        let mut run = Run::start(self, run_dir, metrics)?;
        while !run.is_done() {
            // Waiting for data is part of a step: slow data must show in the tokens per second.
            let started = Instant::now();
            let Some(batches) = run.next_batches()? else {
                break;
            };
            run.step(batches, started)?;
            run.look()?;
            if run.stop.is_requested() {
                break;
            }
        }
        run.end()
    }
}

struct Run {
    training: Training,
    trainer: Box<dyn Trainer>,
    config: TrainerConfig,
    data: Pipeline,
    loader: Loader,
    metrics: Metrics,
    writer: Writer,
    tokenizer_files: Vec<PathBuf>,
    stop: StopFlag,
    seed: u64,
    /// Tokens and data position after the last step.
    tokens: u64,
    cursor: tt_data::Cursor,
    /// The data ended before `max_steps`.
    exhausted: bool,
    batches: Vec<Batch>,
    validated: Option<(u64, f32)>,
    /// The checkpoint last handed to the writer or resumed from.
    saved: Option<u64>,
    /// The checkpoint last known to be complete.
    checkpoint: Option<PathBuf>,
    trained: Duration,
    trained_tokens: u64,
}

impl Run {
    fn start(prepared: Prepared, run_dir: &Path, metrics: Metrics) -> Result<Self> {
        let Prepared {
            training,
            config,
            data,
            resume,
            ..
        } = prepared;
        Ok(Self {
            tokenizer_files: write_tokenizer(&data, run_dir)?,
            writer: Writer::open(run_dir.join("checkpoints"), config.checkpoint.clone())?,
            saved: resume.as_ref().map(|_| training.step),
            checkpoint: resume.map(|checkpoint| checkpoint.dir().to_owned()),
            training,
            trainer: prepared.trainer,
            config,
            data,
            loader: prepared.loader,
            metrics,
            stop: prepared.stop,
            seed: prepared.seed,
            tokens: prepared.tokens,
            cursor: prepared.cursor,
            exhausted: false,
            batches: Vec::new(),
            validated: prepared.validated,
            trained: Duration::ZERO,
            trained_tokens: 0,
        })
    }

    fn is_done(&self) -> bool {
        let max_steps = self.config.max_steps;
        self.exhausted || max_steps.is_some_and(|max| self.training.step >= max)
    }

    /// The micro-batches of the next step; `None` when the data has ended.
    fn next_batches(&mut self) -> Result<Option<Vec<Batch>>> {
        let mut batches = std::mem::take(&mut self.batches);
        for _ in 0..self.config.global_batch_size / self.config.micro_batch_size {
            match self.loader.next_batch()? {
                Some(batch) => batches.push(batch),
                None => break,
            }
        }
        self.exhausted = batches.is_empty();
        Ok((!self.exhausted).then_some(batches))
    }

    fn step(&mut self, mut batches: Vec<Batch>, started: Instant) -> Result<()> {
        let scale = self.training.guard.loss_scale();
        let output = self.trainer.train_step(&mut self.training, &batches)?;
        let elapsed = started.elapsed();

        let ids = batches.iter().flat_map(|batch| &batch.segment_ids);
        let tokens = ids.filter(|&&segment| segment != 0).count() as u64;
        self.tokens += tokens;
        self.trained += elapsed;
        self.trained_tokens += tokens;
        if let Some(last) = batches.last() {
            self.cursor = last.cursor;
        }
        batches
            .drain(..)
            .for_each(|batch| self.loader.recycle(batch));
        self.batches = batches;

        let StepOutput {
            numbers,
            lr,
            of_optimizers,
            verdict,
        } = output;
        let is_applied = matches!(verdict, Verdict::Apply | Verdict::Warn(_));
        let mut scalars: Scalars = numbers
            .scalars
            .into_iter()
            .map(|(name, x)| (name.to_owned(), x.into()))
            .collect();
        scalars.extend(of_optimizers);
        if let Some(scale) = scale {
            let skipped = self.training.guard.skipped_steps() as i64;
            scalars.insert("loss_scale".to_owned(), scale.into());
            scalars.insert("skipped_steps".to_owned(), skipped.into());
        }
        if !is_applied {
            scalars.insert("skipped".to_owned(), 1.into());
        }
        let step = match verdict {
            Verdict::Stop(_) => self.training.step + 1,
            _ => self.training.step,
        };
        self.metrics.log(StepRecord {
            step,
            loss: numbers.loss,
            lr,
            grad_norm: numbers.grad_norm,
            tokens: self.tokens,
            scalars,
            tokens_per_second: tokens as f64 / elapsed.as_secs_f64(),
            step_time_ms: elapsed.as_secs_f64() * 1e3,
        })?;
        match verdict {
            Verdict::Stop(_) => {
                let loss = numbers.loss;
                Err(Error::NonFinite { step, loss })
            }
            _ => Ok(()),
        }
    }

    /// What is due after a step.
    fn look(&mut self) -> Result<()> {
        let step = self.training.step;
        let due = |interval: Option<u64>| interval.is_some_and(|n| step.is_multiple_of(n));
        if due(self.config.eval_interval) {
            self.validate()?;
        }
        if due(self.config.checkpoint_interval) {
            self.save()?;
        }
        if due(self.config.sample_interval) {
            let shown = sample(&self.training, &self.data, &self.config.sample)?;
            shown
                .iter()
                .for_each(|text| self.metrics.message(&text.to_string()));
        }
        Ok(())
    }

    /// The validation loss after the last step, made once.
    fn validate(&mut self) -> Result<f32> {
        let step = self.training.step;
        if let Some((_, loss)) = self.validated.filter(|(at, _)| *at == step) {
            return Ok(loss);
        }
        let loss = validate(&self.training, &*self.trainer, self.data.validation())?;
        self.validated = Some((step, loss));
        self.metrics.log(ValRecord {
            step,
            val_loss: loss,
            ..ValRecord::default()
        })?;
        Ok(loss)
    }

    fn save(&mut self) -> Result<()> {
        if self.saved == Some(self.training.step) {
            return Ok(());
        }
        self.metrics.sync()?;
        // The copy of the run before this one is written before another is taken.
        let written = self.writer.wait()?;
        self.note(written);
        let state = TrainState {
            step: self.training.step,
            tokens: self.tokens,
            optimizer_steps: self.training.optimizers.steps(),
            seed: self.seed,
            cursor: self.cursor,
            data: self.data.fingerprint().to_owned(),
            validated: self.validated,
            base: None, // filled in with the parameters
            instruction_set: self.training.device.instruction_set().to_owned(),
            guard: self.training.guard.state(),
            trainer: serde_json::Value::Null,
        };
        let tokenizer = self.data.tokenizer();
        let files = &self.tokenizer_files;
        let snapshot = state::snapshot(&self.training, &*self.trainer, state, tokenizer, files)?;
        self.writer.submit(snapshot)?;
        self.saved = Some(self.training.step);
        Ok(())
    }

    fn note(&mut self, written: Option<Saved>) {
        if let Some(saved) = written {
            self.checkpoint = Some(saved.dir);
        }
    }

    fn end(mut self) -> Result<Outcome> {
        if self.training.step == 0 {
            return Err(Error::NoData);
        }
        let ending = match self.is_done() {
            true => Ending::Finished,
            false => Ending::Stopped,
        };
        let final_val_loss = match ending {
            Ending::Finished => Some(self.validate()?),
            Ending::Stopped => None,
        };
        self.save()?;
        let written = self.writer.wait()?;
        self.note(written);
        let continuations = match ending {
            Ending::Finished => sample(&self.training, &self.data, &self.config.sample)?,
            Ending::Stopped => Vec::new(),
        };
        self.metrics.finish()?;
        Ok(Outcome {
            ending,
            step: self.training.step,
            final_val_loss,
            checkpoint: self.checkpoint.unwrap_or_default(),
            tokens_per_second: self.trained_tokens as f64
                / self.trained.as_secs_f64().max(f64::MIN_POSITIVE),
            continuations,
        })
    }
}

/// What of a configuration cannot be trained, by its key.
fn check(config: &TrainerConfig, data: &Pipeline, model: &dyn Model) -> Result<()> {
    config.check()?;
    let fail = |key, why| Err(Error::Config { key, why });
    let (length, max) = (data.sequence_length(), model.max_positions());
    if length > max {
        let why = format!("{length} is more than the model's max_position_embeddings {max}");
        return fail("data.sequence_length", why);
    }
    let (needed, vocab) = (data.tokenizer().vocab_size(), model.vocab_size());
    if vocab < needed {
        let why = format!("{vocab} is less than the tokenizer's {needed} tokens");
        return fail("model.vocab_size", why);
    }
    Ok(())
}

/// Puts the tokenizer's files into the run folder, from where each checkpoint takes them.
fn write_tokenizer(data: &Pipeline, run_dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = run_dir.join("tokenizer");
    let io = |path: &Path, source| Error::Write {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(&dir).map_err(|error| io(&dir, error))?;
    let files = data.tokenizer().files().iter();
    files
        .map(|(name, bytes)| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).map_err(|error| io(&path, error))?;
            Ok(path)
        })
        .collect()
}
