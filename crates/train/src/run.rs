//! A training run from its first step to its last checkpoint.
//!
//! Order of events after a step: its row is logged, then validation, checkpoint, samples, so that a
//! checkpoint implies the rows up to its step, a resumed run writes the rows it would have written, and
//! nothing for show can lose what was trained.
//! A run asked to stop in the middle of a validation leaves it to the run that goes on, which makes it first; one asked
//! in the middle of a step leaves that step to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tt_checkpoint::{Saved, Writer};
use tt_collators::{Batch, LeftOut, Loader, Pipeline};
use tt_data::DataError;
use tt_metrics::{Alert, AlertLevel, End, Metrics, Scalars, StepRecord, ValRecord};
use tt_tensor::profile;

use crate::Trainer;
use crate::bad_step::BadStep;
use crate::bad_step_dump::dump;
use crate::config::TrainerConfig;
use crate::diagnosis::first_non_finite;
use crate::error::{Error, Result};
use crate::finding::{ChangedBy, Finding, Place};
use crate::guard::{Cause, Verdict};
use crate::job::{Ending, Outcome, Prepared};
use crate::mirror::Mirror;
use crate::snapshot::snapshot;
use crate::state::{OptimizerState, TrainState};
use crate::step::StepOutput;
use crate::stop::StopFlag;
use crate::token_ids::TokenIds;
use crate::trace::{Tracer, Written};
use crate::training::{StepTimes, Training};
use crate::utilization::Utilization;
use crate::validation::{Validation, sample, validate};

/// Global batches one after another without a target that end a run: the rest of the data will have none either.
const MOST_PASSED_OVER: u64 = 10_000;

pub(crate) struct Run {
    training: Training,
    trainer: Box<dyn Trainer>,
    config: TrainerConfig,
    data: Pipeline,
    loader: Loader,
    metrics: Metrics,
    /// Of the first rank.
    writer: Option<Writer>,
    mirror: Option<Box<dyn Mirror>>,
    /// Of the first rank.
    run_dir: Option<PathBuf>,
    tokenizer_files: Vec<PathBuf>,
    token_ids: TokenIds,
    stop: StopFlag,
    /// All ranks have agreed to stop.
    is_stopped: bool,
    seed: u64,
    utilization: Option<Utilization>,
    tracer: Option<Tracer>,
    /// Tokens and data position after the last step.
    tokens: u64,
    cursor: tt_data::Cursor,
    /// The data ended before `max_steps`.
    exhausted: bool,
    batches: Vec<Batch>,
    /// Global batches without a target: since this process began, and since the last step.
    passed_over: u64,
    passed_over_now: u64,
    /// What of the data was left out since this process began.
    left_out: LeftOut,
    /// Of that, what has been said.
    left_out_said: LeftOut,
    validated: Option<(u64, f32)>,
    /// What the trainer has said of that one besides, if this process made it.
    val_scalars: Scalars,
    /// The last step after which there were samples.
    sampled: Option<u64>,
    /// The checkpoint last handed to the writer or resumed from.
    saved: Option<u64>,
    /// The checkpoint last known to be complete.
    checkpoint: Option<PathBuf>,
    trained: Duration,
    trained_tokens: u64,
    train_loss: Option<f32>,
    /// The last step of this process that changed weights.
    last_applied: Option<u64>,
    started: Instant,
}

/// What a step is made of.
struct StepBatches {
    /// This rank's micro-batches.
    own: Vec<Batch>,
    /// The other ranks', on the first, which keeps what there is to keep of a bad step.
    others: Vec<Batch>,
    /// Of all ranks.
    micro_batches: u64,
    /// Of all ranks.
    tokens: u64,
    /// Of all ranks: places for tokens, padding included.
    positions: u64,
    /// Where the data goes on after the step.
    cursor: tt_data::Cursor,
}

/// What a step took.
struct StepUse {
    tokens: u64,
    /// Places for tokens, padding included.
    positions: u64,
    micro_batches: u64,
    time: Duration,
    /// Of that, until there were batches.
    data_wait: Duration,
    parts: StepTimes,
}

impl Run {
    /// In a folder of its own, which others may not use meanwhile.
    pub fn start(mut prepared: Prepared, run_dir: &Path, mut metrics: Metrics) -> Result<Self> {
        if let Some(message) = prepared.prepared_data.take() {
            metrics.message(&message);
        }
        let config = prepared.config.checkpoint.clone();
        let writer = Writer::open(run_dir.join("checkpoints"), config)?;
        let tokenizer_files = write_tokenizer(&prepared.data, run_dir)?;
        let mut run = Self::follow(prepared);
        // It may have been cut off while it was taken. Another run's is nothing to take.
        let own = run.checkpoint.as_deref();
        let own = own.filter(|dir| dir.parent() == Some(writer.dir()));
        if let (Some(mirror), Some(dir)) = (&mut run.mirror, own) {
            let step = run.training.step;
            mirror.take(step, dir.to_owned(), writer.hold(step));
        }
        Ok(Self {
            run_dir: Some(run_dir.to_owned()),
            tokenizer_files,
            writer: Some(writer),
            metrics,
            ..run
        })
    }

    /// Beside a run of another rank.
    pub fn follow(prepared: Prepared) -> Self {
        let Prepared {
            training,
            config,
            data,
            resume,
            mirror,
            utilization,
            profile,
            ..
        } = prepared;
        Self {
            run_dir: None,
            tokenizer_files: Vec::new(),
            writer: None,
            mirror,
            is_stopped: false,
            sampled: None,
            saved: resume.as_ref().map(|_| training.step),
            checkpoint: resume.map(|checkpoint| checkpoint.dir().to_owned()),
            training,
            trainer: prepared.trainer,
            config,
            data,
            loader: prepared.loader,
            metrics: Metrics::none(),
            token_ids: prepared.token_ids,
            stop: prepared.stop,
            seed: prepared.seed,
            utilization,
            tracer: profile.map(Tracer::new),
            tokens: prepared.tokens,
            cursor: prepared.cursor,
            exhausted: false,
            batches: Vec::new(),
            passed_over: 0,
            passed_over_now: 0,
            left_out: LeftOut::default(),
            left_out_said: LeftOut::default(),
            validated: prepared.validated,
            val_scalars: Scalars::new(),
            trained: Duration::ZERO,
            trained_tokens: 0,
            train_loss: None,
            last_applied: None,
            started: Instant::now(),
        }
    }

    /// Trains, and tells the sinks how it has ended, after `closing`.
    pub fn complete(
        mut self,
        closing: impl FnOnce(&Result<Outcome>, &mut Metrics),
    ) -> Result<Outcome> {
        let outcome = self.train().and_then(|outcome| {
            self.metrics.sync()?;
            Ok(outcome)
        });
        let step = self.training.step;
        let outcome = outcome.map_err(|error| self.located(error, || format!("after step {step}")));
        let end = match &outcome {
            Ok(outcome) => outcome.ending.into(),
            Err(error) => End::Failed(error.to_string()),
        };
        self.metrics.closing(&end);
        closing(&outcome, &mut self.metrics);
        let durable = self.metrics.finish(&end);
        let outcome = outcome?;
        durable?;
        Ok(outcome)
    }

    /// With the place in the run at which ranks do not work together any more: that of the one that says it first, as others
    /// may be elsewhere.
    fn located(&self, error: Error, when: impl FnOnce() -> String) -> Error {
        let is_of_work = matches!(
            error,
            Error::Checkpoint(_)
                | Error::Engine(_)
                | Error::Model(_)
                | Error::Nn(_)
                | Error::Sharding(_)
                | Error::Tensor(_)
        );
        if self.training.ranks.is_none() || !is_of_work {
            return error;
        }
        Error::OfRanks {
            when: when(),
            error: Box::new(error),
        }
    }

    fn train(&mut self) -> Result<Outcome> {
        self.validate_if_left_out()?;
        while !self.is_done() {
            if let Some(tracer) = &mut self.tracer {
                tracer.before(&mut self.training)?;
            }
            // Waiting for data is part of a step: slow data must show in the tokens per second.
            let started = Instant::now();
            let span = profile::span("step", || format!("step {}", self.training.step + 1));
            let waiting = profile::span("part", || "data");
            let batches = self.next_batches()?;
            drop(waiting);
            if self.agree_to_stop()? {
                break;
            }
            let Some(batches) = batches else {
                break;
            };
            let data_wait = started.elapsed();
            match self.step(batches, started, data_wait) {
                // Nothing of the step is left: neither state nor cursor has moved.
                Err(Error::Stopped) => {
                    self.is_stopped = true;
                    break;
                }
                done => {
                    let step = self.training.step + 1;
                    done.map_err(|error| self.located(error, || format!("step {step}")))?;
                }
            }
            drop(span);
            self.trace(false)?;
            if self.metrics.wants_stop() {
                self.stop.request();
            }
            self.after_step()?;
        }
        self.trace(true)?;
        self.agree_to_stop()?;
        self.end()
    }

    /// Whether the run is to stop: if any rank is asked to, and once it is so for good.
    fn agree_to_stop(&mut self) -> Result<bool> {
        let asked = self.is_stopped || self.stop.is_requested();
        self.is_stopped = self.training.reduce.is_stopped(asked)?;
        Ok(self.is_stopped)
    }

    /// Writes the trace if the last step that is to be in it is made, or there will be no other.
    fn trace(&mut self, is_over: bool) -> Result<()> {
        let (Some(tracer), Some(run_dir)) = (&mut self.tracer, &self.run_dir) else {
            return Ok(());
        };
        let written = tracer.after(&mut self.training, is_over, run_dir)?;
        if let Some(Written { trace, summary }) = written {
            self.metrics.message(&format!(
                "trace written to {}; https://ui.perfetto.dev shows it, a summary is beside it",
                trace.display()
            ));
            self.metrics.message(&summary.of_a_step());
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let max_steps = self.config.max_steps;
        self.exhausted || max_steps.is_some_and(|max| self.training.step >= max)
    }

    fn is_due(&self, interval: Option<u64>) -> bool {
        interval.is_some_and(|n| self.training.step.is_multiple_of(n))
    }

    /// Makes the validation that the run before broke off.
    fn validate_if_left_out(&mut self) -> Result<()> {
        if self.training.step > 0 && self.is_due(self.config.eval_interval) {
            self.validate()?;
        }
        Ok(())
    }

    /// The micro-batches of the next step; `None` when the data has ended, or the run is to stop before there are any.
    ///
    /// Data without a target is passed over: there is no loss, so no step is made of it and none is counted.
    fn next_batches(&mut self) -> Result<Option<StepBatches>> {
        let mut batches = std::mem::take(&mut self.batches);
        let left_out = self.left_out;
        loop {
            for _ in 0..self.config.global_batch_size / self.config.micro_batch_size {
                match self.loader.next_batch() {
                    Ok(Some(batch)) => {
                        self.left_out += batch.left_out;
                        batches.push(batch);
                    }
                    Ok(None) => {
                        self.left_out += self.loader.take_left_out();
                        break;
                    }
                    Err(DataError::Interrupted) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
            self.exhausted = batches.is_empty();
            if self.exhausted || batches.iter().any(|batch| batch.num_targets > 0) {
                break;
            }
            self.pass_over(&mut batches)?;
        }
        self.report_passed_over();
        self.report_left_out(left_out);
        if self.exhausted {
            return Ok(None);
        }
        let ids = batches.iter().flat_map(|batch| &batch.segment_ids);
        let tokens = ids.filter(|&&segment| segment != 0).count() as u64;
        let positions: usize = batches.iter().map(|it| it.segment_ids.len()).sum();
        let cursor = batches.last().map_or(self.cursor, |last| last.cursor);
        let share = self.training.reduce.share();
        let mut others = Vec::new();
        Ok(Some(StepBatches {
            micro_batches: batches.len() as u64,
            own: share.take(batches, |batch| {
                if self.run_dir.is_some() {
                    others.push(batch);
                } else {
                    self.loader.recycle(batch);
                }
            }),
            others,
            tokens,
            positions: positions as u64,
            cursor,
        }))
    }

    /// Gives back batches in which there is nothing to predict.
    fn pass_over(&mut self, batches: &mut Vec<Batch>) -> Result<()> {
        self.passed_over += 1;
        self.passed_over_now += 1;
        if self.passed_over_now > MOST_PASSED_OVER {
            let starts = batches.iter().flat_map(|batch| &batch.starts);
            let at = starts.copied().next().unwrap_or_default();
            return Err(Error::NothingToPredict {
                batches: self.passed_over_now,
                at,
            });
        }
        batches
            .drain(..)
            .for_each(|batch| self.loader.recycle(batch));
        Ok(())
    }

    /// Says when data has been passed over, at first and then ever more rarely: it may be every third batch.
    fn report_passed_over(&mut self) {
        let before = self.passed_over - self.passed_over_now;
        let is_told = self.passed_over.checked_ilog2() != before.checked_ilog2();
        if self.passed_over_now > 0 && is_told {
            let message = format!(
                "warning: before step {}: nothing to predict in {} global batches so far; they were passed over and count as no step",
                self.training.step + 1,
                self.passed_over
            );
            self.metrics.message(&message);
        }
        self.passed_over_now = 0;
    }

    /// Says what a collator has left out of rows or cut off them, as often as [`Run::report_passed_over`] does.
    fn report_left_out(&mut self, before: LeftOut) {
        let count = |it: LeftOut| (it.rows + it.cut_rows).checked_ilog2();
        if count(self.left_out) != count(before) {
            self.say_left_out(&format!("before step {}", self.training.step + 1));
        }
    }

    /// Says the whole, of which the last that was said may be half.
    fn report_left_out_in_all(&mut self) {
        if self.left_out != self.left_out_said {
            self.say_left_out("at the end");
        }
    }

    fn say_left_out(&mut self, when: &str) {
        self.left_out_said = self.left_out;
        if let Some(said) = self.left_out.describe(self.data.sequence_length()) {
            let message = format!("warning: {when}: so far {said}");
            self.metrics.message(&message);
        }
    }

    fn step(&mut self, batches: StepBatches, started: Instant, data_wait: Duration) -> Result<()> {
        let StepBatches {
            own: mut batches,
            others,
            micro_batches,
            tokens,
            positions,
            cursor,
        } = batches;
        let step = self.training.step + 1;
        let guard = &self.training.guard;
        let (loss_scale, skipped_before) = (guard.loss_scale(), guard.skipped_in_a_row());
        self.training.times = StepTimes::default();
        let output = self.trainer.train_step(&mut self.training, &batches)?;
        let elapsed = started.elapsed();
        self.report_idle_parameters(step);

        let used = StepUse {
            tokens,
            positions,
            micro_batches,
            time: elapsed,
            data_wait,
            parts: self.training.times,
        };
        self.trained += elapsed;
        self.trained_tokens += tokens;
        self.train_loss = Some(output.numbers.loss);
        if let Some(histograms) = self.training.histograms.take() {
            self.metrics.histograms(step, histograms)?;
        }
        self.log(step, &output, self.tokens + tokens, loss_scale, used)?;
        let bad = |cause: &Cause| BadStep {
            step,
            cause: cause.clone(),
            loss: output.numbers.loss,
            grad_norm: output.numbers.grad_norm,
            finding: None,
            is_examined: false,
            skipped_before,
            dump: None,
        };
        if matches!(output.verdict, Verdict::Apply | Verdict::Warn(_)) {
            self.last_applied = Some(step);
        }
        match &output.verdict {
            Verdict::Apply => {}
            Verdict::Warn(spike) => {
                let message = format!("warning: step {step}: {spike}");
                self.metrics.message(&message);
            }
            Verdict::Skip(cause @ Cause::Overflow { .. }) => {
                self.metrics.message(&format!("skipped {}", bad(cause)));
            }
            Verdict::Skip(cause) => {
                let bad = self.examine(bad(cause), &batches, &others)?;
                self.metrics.message(&format!("skipped {bad}"));
                self.metrics.alert(&Alert {
                    title: "Step skipped".to_owned(),
                    text: bad.to_string(),
                    level: AlertLevel::Warning,
                });
            }
            Verdict::Stop(cause) => {
                let bad = self.examine(bad(cause), &batches, &others)?;
                self.metrics.alert(&Alert {
                    title: "Run ended by a bad step".to_owned(),
                    text: bad.to_string(),
                    level: AlertLevel::Error,
                });
                return Err(self.refused(bad));
            }
        }
        self.tokens += tokens;
        self.cursor = cursor;
        let used = batches.drain(..).chain(others);
        used.for_each(|batch| self.loader.recycle(batch));
        self.batches = batches;
        Ok(())
    }

    /// Once, of the first step: a parameter that the model has and does not use is never trained.
    fn report_idle_parameters(&mut self, step: u64) {
        let idle = self.training.without_gradient.as_mut().map(std::mem::take);
        let Some([first, more @ ..]) = idle.as_deref() else {
            return;
        };
        let more = match more.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        self.metrics.message(&format!(
            "warning: step {step}: no gradient for `{first}`{more}: the loss does not depend on it, and it stays as it is"
        ));
    }

    fn log(
        &mut self,
        step: u64,
        output: &StepOutput,
        tokens: u64,
        loss_scale: Option<f32>,
        used: StepUse,
    ) -> Result<()> {
        let numbers = &output.numbers;
        let scalars = numbers.scalars.iter();
        let mut scalars: Scalars = scalars
            .map(|&(name, x)| (name.to_owned(), x.into()))
            .collect();
        scalars.extend(output.of_optimizers.clone());
        if let Some(scale) = loss_scale {
            let skipped = self.training.guard.skipped_steps() as i64;
            scalars.insert("loss_scale".to_owned(), f64::from(scale).into());
            scalars.insert("skipped_steps".to_owned(), skipped.into());
        }
        if matches!(output.verdict, Verdict::Skip(_) | Verdict::Stop(_)) {
            scalars.insert("skipped".to_owned(), 1.into());
        }
        if self.loader.may_pad() {
            let padding = 1.0 - used.tokens as f64 / used.positions.max(1) as f64;
            scalars.insert("padding".to_owned(), (padding as f32).into());
        }
        if let Some(utilization) = self.utilization {
            let flops = utilization.flops_per_micro_batch * used.micro_batches;
            let per_second = flops as f64 / used.time.as_secs_f64();
            scalars.insert("tflops".to_owned(), (per_second / 1e12).into());
            let mfu = per_second / utilization.peak_flops;
            scalars.insert("mfu".to_owned(), mfu.into());
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        if self.training.ranks.is_some() {
            scalars.insert("sync_ms".to_owned(), ms(used.parts.sync).into());
        }
        let _span = profile::span("part", || "logging");
        Ok(self.metrics.log(StepRecord {
            step,
            loss: numbers.loss,
            lr: output.lr,
            grad_norm: numbers.grad_norm,
            tokens,
            scalars,
            tokens_per_second: used.tokens as f64 / used.time.as_secs_f64(),
            step_time_ms: ms(used.time),
            data_wait_ms: ms(used.data_wait),
            forward_ms: ms(used.parts.forward),
            backward_ms: ms(used.parts.backward),
            optimizer_ms: ms(used.parts.optimizer),
        })?)
    }

    /// Finds out what it can about a step that was not applied, of which this rank has run `own`, and keeps its batch.
    /// Error: ranks cannot work together any more.
    fn examine(&mut self, mut bad: BadStep, own: &[Batch], others: &[Batch]) -> Result<BadStep> {
        // A step that fails is not made worse by a report that fails.
        let warn = |metrics: &mut Metrics, error: Error| {
            metrics.message(&format!("warning: no full report of the bad step: {error}"));
        };
        if bad.cause == Cause::NonFinite {
            match first_non_finite(&self.training, &*self.trainer, bad.step, own) {
                Ok(finding) => {
                    bad.is_examined = true;
                    bad.finding = finding.map(|it| self.with_culprit(it));
                }
                // The others wait for what this one was to do.
                Err(error) if self.training.ranks.is_some() => return Err(error),
                Err(error) => warn(&mut self.metrics, error),
            }
        }
        let Some(run_dir) = &self.run_dir else {
            return Ok(bad);
        };
        let batches = self.training.reduce.share().join(own, others);
        match dump(&bad, &batches, &self.data, run_dir) {
            Ok(dir) => bad.dump = Some(dir),
            Err(error) => warn(&mut self.metrics, error),
        }
        Ok(bad)
    }

    /// Of a weight: which optimizer has changed it last, and when.
    fn with_culprit(&self, mut finding: Finding) -> Finding {
        if let (Place::Weight, Some(step)) = (finding.place, self.last_applied) {
            let optimizer = self.training.optimizers.owner(&finding.tensor);
            finding.changed_by = optimizer.map(|optimizer| ChangedBy { optimizer, step });
        }
        finding
    }

    /// Saves the state before a step that ends the run, unless its weights are lost: then the checkpoint before is
    /// what there is to go on from.
    fn refused(&mut self, bad: BadStep) -> Error {
        let is_lost = bad.is_in_weights();
        let saved = match self.training.step {
            0 => Ok(()),
            _ if is_lost => self.wait(),
            _ => self.save().and_then(|()| self.wait()),
        };
        if let Err(error) = saved {
            self.metrics.message(&bad.to_string());
            return error;
        }
        Error::BadStep {
            checkpoint: self.checkpoint.clone(),
            bad: Box::new(bad),
        }
    }

    /// What is due after a step.
    fn after_step(&mut self) -> Result<()> {
        // A write that failed is told at once, not when the next is due.
        if let Some(writer) = &mut self.writer {
            let written = writer.poll()?;
            self.remember(written);
        }
        if let Some(mirror) = &mut self.mirror {
            let messages = mirror.messages();
            messages.iter().for_each(|text| self.metrics.message(text));
        }
        if self.is_due(self.config.eval_interval) {
            self.validate()?;
        }
        if self.is_due(self.config.checkpoint_interval) {
            self.save()?;
        }
        if self.is_due(self.config.sample_interval) {
            self.sample()?;
        }
        Ok(())
    }

    /// The validation loss after the last step, made once; `None` if the run is to stop before it is known.
    fn validate(&mut self) -> Result<Option<f32>> {
        let step = self.training.step;
        if let Some((_, loss)) = self.validated.filter(|(at, _)| *at == step) {
            return Ok(Some(loss));
        }
        let batches = self.data.validation();
        let found = validate(&self.training, &*self.trainer, batches, &self.stop)?;
        let Some(validation) = found else {
            return Ok(None);
        };
        let Validation {
            loss,
            mut scalars,
            of_parts,
        } = validation;
        let names: Vec<&str> = self.data.validation_parts().collect();
        for (part, loss) in of_parts {
            scalars.insert(format!("val_loss/{}", names[part]), loss.into());
        }
        self.validated = Some((step, loss));
        self.val_scalars = scalars.clone();
        self.metrics.log(ValRecord {
            step,
            val_loss: loss,
            scalars,
        })?;
        Ok(Some(loss))
    }

    /// Shows what the model makes of a few prompts, once after a step.
    fn sample(&mut self) -> Result<()> {
        if self.sampled.replace(self.training.step) == Some(self.training.step) {
            return Ok(());
        }
        let (config, ends) = (&self.config.sample, self.token_ids.ends());
        let samples = sample(&self.training, &self.data, config, ends, &self.stop)?;
        samples
            .iter()
            .try_for_each(|sample| Ok(self.metrics.sample(sample)?))
    }

    fn save(&mut self) -> Result<()> {
        if self.saved == Some(self.training.step) {
            return Ok(());
        }
        self.metrics.sync()?;
        self.wait()?;
        let state = TrainState {
            step: self.training.step,
            tokens: self.tokens,
            optimizer_steps: self.training.optimizers.steps(),
            seed: self.seed,
            cursor: self.cursor,
            data: self.data.fingerprint().to_owned(),
            validated: self.validated,
            optimizers: OptimizerState::of(&self.training.optimizers, self.training.step),
            base: None, // filled in with the parameters
            instruction_set: self.training.device.instruction_set().to_owned(),
            guard: self.training.guard.state(),
            trainer: serde_json::Value::Null,
        };
        let (ids, files) = (&self.token_ids, &self.tokenizer_files);
        let snapshot = snapshot(&self.training, &*self.trainer, state, ids, files)?;
        match &mut self.writer {
            Some(writer) => drop(writer.submit(snapshot)?),
            None => tt_checkpoint::read_along(snapshot, &self.config.checkpoint)?,
        }
        self.saved = Some(self.training.step);
        Ok(())
    }

    /// Waits until what was handed to the writer is on disk.
    fn wait(&mut self) -> Result<()> {
        if let Some(writer) = &mut self.writer {
            let written = writer.wait()?;
            self.remember(written);
        }
        Ok(())
    }

    fn remember(&mut self, written: Option<Saved>) {
        if let Some(saved) = written {
            if let (Some(mirror), Some(writer)) = (&mut self.mirror, &self.writer) {
                let hold = writer.hold(saved.step);
                mirror.take(saved.step, saved.dir.clone(), hold);
            }
            self.metrics.checkpoint(saved.step, &saved.dir);
            self.checkpoint = Some(saved.dir);
        }
    }

    /// What follows the last batch of a run whose steps end with its data: the epochs are over then too, and what has been left
    /// out after that batch has been left out of the run.
    fn look_behind(&mut self) {
        if self.exhausted || self.config.num_epochs.is_none() || !self.is_done() {
            return;
        }
        match self.loader.next_batch() {
            Ok(Some(batch)) => self.loader.recycle(batch),
            Ok(None) => {
                self.exhausted = true;
                self.left_out += self.loader.take_left_out();
            }
            Err(_) => {} // of rows that the run does not need
        }
    }

    fn end(&mut self) -> Result<Outcome> {
        self.look_behind();
        self.report_left_out_in_all();
        if self.training.step == 0 && !self.is_stopped {
            return Err(Error::NoData);
        }
        let final_val_loss = if self.is_done() {
            self.validate()?
        } else {
            None
        };
        let ending = match final_val_loss {
            Some(_) => Ending::Finished,
            None => Ending::Stopped,
        };
        if self.training.step > 0 {
            self.save()?;
        }
        self.wait()?;
        if let Some(loss) = final_val_loss.filter(|loss| !loss.is_finite()) {
            let checkpoint = self.checkpoint.clone().unwrap_or_default();
            return Err(Error::NonFiniteValidation { loss, checkpoint });
        }
        if ending == Ending::Finished {
            self.sample()?;
        }
        Ok(Outcome {
            ending,
            step: self.training.step,
            epochs: self.config.num_epochs.map(|all| (all, self.exhausted)),
            final_val_loss,
            final_val_scalars: std::mem::take(&mut self.val_scalars),
            tokens: self.tokens,
            train_loss: self.train_loss,
            wall_time: self.started.elapsed(),
            checkpoint: self.checkpoint.clone().unwrap_or_default(),
            tokens_per_second: self.trained_tokens as f64
                / self.trained.as_secs_f64().max(f64::MIN_POSITIVE),
        })
    }
}

/// Puts the tokenizer's files into the run folder, from where each checkpoint takes them.
fn write_tokenizer(data: &Pipeline, run_dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = run_dir.join("tokenizer");
    let io = |path: &Path, source| Error::Write {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(&dir).map_err(|error| io(&dir, error))?;
    let files = data.tokenizer_files().into_iter();
    files
        .map(|(name, bytes)| {
            let path = dir.join(&name);
            std::fs::write(&path, bytes).map_err(|error| io(&path, error))?;
            Ok(path)
        })
        .collect()
}
