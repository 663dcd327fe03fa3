//! An optimizer step in four calls, of which every trainer is made:
//!
//! 1. [`Training::accumulate`] adds up gradients and sums of losses over this rank's micro-batches,
//! 2. [`Training::reduce`] makes them those of all ranks,
//! 3. [`Training::judge`] reads the step's numbers, which is its one read, and decides what becomes of it,
//! 4. [`Training::take_step`] lets the optimizers move, or not.

use std::sync::Arc;
use std::time::Instant;

use tt_collators::Batch;
use tt_metrics::Scalar;
use tt_models::Model;
use tt_nn::Forward;
use tt_optimizers::Metric;
use tt_tensor::{Parameter, Tape, Tensor, fused, profile};

use crate::Loss;
use crate::device_batch::DeviceBatch;
use crate::device_memory::Moment;
use crate::error::{Error, Result};
use crate::guard::Verdict;
use crate::totals::{StepNumbers, Totals};
use crate::training::Training;

/// What is to become of a step.
pub struct Judgement {
    /// What the step comes to.
    pub numbers: StepNumbers,
    /// What is to be done with it.
    pub verdict: Verdict,
    /// What gradients are multiplied by to be those of the mean loss, clipped: f32 `[1]`.
    grad_scale: Tensor,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// What the step came to.
    pub numbers: StepNumbers,
    /// Rate of the step, the first optimizer's if there are several.
    pub lr: f64,
    /// What the optimizers report by name: of several each one's rate, and their metrics where they are due.
    pub of_optimizers: Vec<(String, Scalar)>,
    /// What was done with it.
    pub verdict: Verdict,
}

impl Training {
    /// Sums what `counts` says of each micro-batch over the step, of all ranks, for its loss to know: see
    /// [`Trainer::counts`](crate::Trainer::counts).
    pub fn count(
        &mut self,
        micro_batches: &[Batch],
        counts: impl Fn(&Batch) -> Vec<f32>,
    ) -> Result<()> {
        let counts = sum_counts(micro_batches.iter(), counts);
        self.counts = match counts.is_empty() {
            true => counts,
            false => self.reduce.sums(counts)?,
        };
        Ok(())
    }

    /// Runs `loss` forward and backward on each micro-batch and adds up gradients and sums.
    ///
    /// Error: [`Error::Stopped`] if the run is asked to stop before the last micro-batch; no trace of the step is left.
    pub fn accumulate(
        &mut self,
        micro_batches: &[Batch],
        loss: impl Fn(&Forward, &dyn Model, &DeviceBatch) -> Result<Loss>,
    ) -> Result<Totals> {
        let mut targets = num_targets(micro_batches);
        if self.guard.loss_scale().is_some() {
            // Nothing else depends on them before the sums are known.
            targets = self.reduce.num_targets(targets)?;
        }
        let seed = self.guard.backward_seed(targets);
        let share = self.reduce.share();
        self.tape.set_loss_scale(seed);
        let mut totals: Option<Totals> = None;
        for (micro, batch) in micro_batches.iter().enumerate() {
            if self.reduce.is_stopped(self.stop.is_requested())? {
                self.drop_gradients();
                return Err(Error::Stopped);
            }
            self.look_at_memory(Moment::BeforeForward);
            let begun = Instant::now();
            let span = profile::span("part", || "forward");
            let fwd = self.forward(&self.tape, self.step, share.index(micro));
            let batch = DeviceBatch::upload(batch, self.device)?.with_counts(&self.counts);
            let part = loss(&fwd, &*self.model, &batch)?.checked()?;
            let forward_done = Instant::now();
            drop(span);
            self.look_at_memory(Moment::AfterForward);
            let span = profile::span("part", || "backward");
            backward(&self.tape, &part.sum, seed)?;
            drop(span);
            self.reduce.end_pass();
            self.look_at_memory(Moment::Outside);
            self.times.forward += forward_done - begun;
            self.times.backward += forward_done.elapsed();
            totals = Some(match totals {
                None => Totals::new(part, seed),
                Some(so_far) => so_far.plus(part)?,
            });
        }
        totals.ok_or(Error::NoData)
    }

    /// Makes gradients and sums those of all ranks.
    pub fn reduce(&mut self, totals: &mut Totals) -> Result<()> {
        let _span = profile::span("part", || "reduce");
        let begun = Instant::now();
        self.reduce.totals(totals)?;
        self.reduce.gradients(&self.params)?;
        self.times.sync += begun.elapsed();
        Ok(())
    }

    /// Reads the numbers of the step and asks the guard whether it may reach the weights.
    pub fn judge(&mut self, totals: &Totals) -> Result<Judgement> {
        let _span = profile::span("part", || "judge");
        let begun = Instant::now();
        let count = self.gradients().count();
        if count == 0 {
            return Err(Error::NoGradient {
                step: self.step + 1,
            });
        }
        if self.without_gradient.is_none() {
            self.without_gradient = Some(self.idle_parameters());
        }
        if self.wants_histograms() {
            self.histograms = Some(self.count_elements(&totals.divisor()?)?);
        }
        let counted = || {
            let params = self.params.iter().filter(|(_, it)| self.reduce.counts(it));
            params.filter_map(|(_, it)| it.grad())
        };
        let squares = match counted().count() {
            0 => Tensor::zeros(1, self.device)?,
            count => fused::sum_squares(self.device, count, counted())?,
        };
        let squares = self.reduce.sum_squares(squares)?;
        let (grad_scale, grad_norm) =
            fused::clip_scale(&squares, &totals.divisor()?, self.clipping.max_norm)?;
        let numbers = self.reduce.numbers(totals.read(&grad_norm)?)?;
        let verdict = self.guard.judge(numbers.loss, numbers.grad_norm);
        self.look_at_memory(Moment::Outside);
        self.times.optimizer += begun.elapsed();
        Ok(Judgement {
            numbers,
            verdict,
            grad_scale,
        })
    }

    /// Does as `judgement` says: steps the optimizers with the gradients, or drops these. They are taken either way.
    pub fn take_step(&mut self, judgement: Judgement) -> Result<StepOutput> {
        let _span = profile::span("part", || "optimizer");
        let begun = Instant::now();
        let Judgement {
            numbers,
            verdict,
            grad_scale,
        } = judgement;
        let mut of_optimizers = self.rates();
        let lr = of_optimizers.first().map_or(0.0, |(_, lr)| lr.to_f64());
        if self.optimizers.len() == 1 {
            of_optimizers.clear();
        }
        match verdict {
            Verdict::Apply | Verdict::Warn(_) => {
                of_optimizers.extend(self.step_optimizers(grad_scale)?);
                self.step += 1;
            }
            Verdict::Skip(_) => {
                self.drop_gradients();
                self.step += 1;
            }
            Verdict::Stop(_) => self.drop_gradients(),
        }
        self.times.optimizer += begun.elapsed();
        self.look_at_memory(Moment::Outside);
        Ok(StepOutput {
            numbers,
            lr,
            of_optimizers,
            verdict,
        })
    }

    fn rates(&self) -> Vec<(String, Scalar)> {
        let rates = self.optimizers.rates(self.step);
        rates
            .map(|(name, lr)| (format!("{name}_lr"), lr.into()))
            .collect()
    }

    /// Lets the optimizers move. Gives their metrics if they are due, which costs a second read.
    fn step_optimizers(&mut self, grad_scale: Tensor) -> Result<Vec<(String, Scalar)>> {
        let grad_scale = match self.clipping.max_value {
            None => grad_scale,
            Some(max) => {
                for (_, parameter) in self.params.iter() {
                    if let Some(grad) = parameter.take_grad() {
                        parameter.set_grad(fused::clip_value(grad, &grad_scale, max)?);
                    }
                }
                Tensor::ones(1, self.device)?
            }
        };
        let due = |interval: u64| (self.step + 1).is_multiple_of(interval);
        let wants_metrics = self.metrics_interval.is_some_and(due);
        let counted = (wants_metrics && self.ranks.is_some()).then(|| {
            let params = self.params.iter().filter(|(_, it)| self.reduce.counts(it));
            Arc::new(params.map(|(spec, _)| spec.path.clone()).collect())
        });
        let scale = &grad_scale;
        self.optimizers
            .step(&self.params, self.step, scale, wants_metrics, counted)?;
        if !wants_metrics {
            return Ok(Vec::new());
        }
        let metrics = self.optimizers.metrics()?;
        if metrics.is_empty() {
            return Ok(Vec::new());
        }
        let sums: Vec<Tensor> = metrics.iter().map(|it| it.sums.clone()).collect();
        let sums = Tensor::cat(&sums, 0)?.to_vec::<f32>()?;
        let sums = self.reduce.sums(sums)?;
        let mut rest = &sums[..];
        let number = |metric: Metric| {
            let (own, others) = rest.split_at(metric.sums.elem_count());
            rest = others;
            (metric.name, (metric.of_sums)(own).into())
        };
        Ok(metrics.into_iter().map(number).collect())
    }

    /// Forgets what has been accumulated.
    pub(crate) fn drop_gradients(&self) {
        for (_, parameter) in self.params.iter() {
            parameter.take_grad();
        }
        self.reduce.forget();
    }

    /// Those to be trained on which no loss of the step depends.
    fn idle_parameters(&self) -> Vec<String> {
        let idle =
            |(_, it): &(_, &std::sync::Arc<Parameter>)| it.is_trainable() && it.grad().is_none();
        let idle = self.params.iter().filter(idle);
        idle.map(|(spec, _)| spec.path.clone()).collect()
    }

    fn gradients(&self) -> impl Iterator<Item = Tensor> {
        self.params.iter().filter_map(|(_, p)| p.grad())
    }
}

/// The sums of what `counts` says of each batch.
pub(crate) fn sum_counts<'a>(
    batches: impl Iterator<Item = &'a Batch>,
    counts: impl Fn(&Batch) -> Vec<f32>,
) -> Vec<f32> {
    let mut sums = Vec::new();
    batches.for_each(|batch| add_counts(&mut sums, counts(batch)));
    sums
}

/// Adds what is said of one more batch.
pub(crate) fn add_counts(sums: &mut Vec<f32>, more: Vec<f32>) {
    match sums.is_empty() {
        true => *sums = more,
        false => sums
            .iter_mut()
            .zip(more)
            .for_each(|(sum, more)| *sum += more),
    }
}

/// Labels that the loss counts.
pub(crate) fn num_targets(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.num_targets).sum()
}

/// Gradients of `seed` times the loss.
pub(crate) fn backward(tape: &Tape, loss: &Tensor, seed: f32) -> Result<()> {
    if seed == 1.0 {
        tape.backward(loss)?;
    } else {
        tape.backward(&loss.affine(seed.into(), 0.0)?)?;
    }
    Ok(())
}
