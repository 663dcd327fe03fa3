//! A run's changing parts, and the two halves of a step that every trainer is made of.
//!
//! [`Training::accumulate`] adds the gradients of summed losses over micro-batches; [`Training::apply`] divides by
//! the weight of the whole step, reads its numbers, which is the step's one read, and lets the optimizer move if
//! they are what they should be.

use std::sync::Arc;

use tt_collators::Batch;
use tt_models::Model;
use tt_nn::{Forward, ParamTree, Recompute};
use tt_optimizers::{Optimizer, Schedule, StepContext};
use tt_tensor::{Device, Precision, Seed, Tape, Tensor, fused};

use crate::Loss;
use crate::adapted::Adapted;
use crate::device_batch::DeviceBatch;
use crate::error::{Error, Result};
use crate::guard::{StepGuard, Verdict};

/// Model, parameters, optimizer and position of a run.
pub struct Training {
    pub model: Arc<dyn Model>,
    pub params: ParamTree,
    pub optimizer: Box<dyn Optimizer>,
    pub schedule: Schedule,
    pub max_grad_norm: Option<f64>,
    pub device: Device,
    /// Root of the run's randomness.
    pub seed: Seed,
    /// Modules that are run again in the backward pass.
    pub recompute: Option<Arc<dyn Recompute>>,
    /// What products are computed in.
    pub precision: Precision,
    /// Present if an adapter is trained and not the whole model.
    pub adapter: Option<Adapted>,
    /// Steps done, those that were skipped included.
    pub step: u64,
    /// Decides which steps reach the weights.
    pub guard: StepGuard,
    /// Kept from step to step, so that recording does not allocate.
    tape: Tape,
}

/// Sums over the micro-batches of a step, on the device.
pub struct Totals {
    /// Summed loss, f32 `[]`.
    pub loss: Tensor,
    /// What the loss is divided by, f32 `[]`.
    pub weight: Tensor,
    /// Further sums by name; each is divided by the weight when it is logged.
    pub scalars: Vec<(&'static str, Tensor)>,
    /// The gradients are those of the loss times this.
    seed: f32,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    pub numbers: StepNumbers,
    /// Rate of the step.
    pub lr: f64,
    pub verdict: Verdict,
}

/// The numbers of a step on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StepNumbers {
    pub loss: f32,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f32,
    pub scalars: Vec<(&'static str, f32)>,
}

impl Training {
    /// A run at its first step.
    pub fn new(
        model: Arc<dyn Model>,
        optimizer: Box<dyn Optimizer>,
        params: ParamTree,
        schedule: Schedule,
        max_grad_norm: Option<f64>,
        seed: Seed,
        device: Device,
    ) -> Self {
        Self {
            model,
            params,
            optimizer,
            schedule,
            max_grad_norm,
            device,
            seed,
            recompute: None,
            adapter: None,
            precision: Precision::default(),
            step: 0,
            guard: StepGuard::default(),
            tape: Tape::new(),
        }
    }

    /// Runs `loss` forward and backward on each micro-batch and adds up gradients and sums.
    pub fn accumulate(
        &mut self,
        micro_batches: &[Batch],
        loss: impl Fn(&Forward, &dyn Model, &DeviceBatch) -> Result<Loss>,
    ) -> Result<Totals> {
        let seed = self.guard.backward_seed(micro_batches);
        let mut totals: Option<Totals> = None;
        for (micro, batch) in micro_batches.iter().enumerate() {
            let fwd = self.forward(&self.tape, micro);
            let batch = DeviceBatch::upload(batch, self.device)?;
            let part = loss(&fwd, &*self.model, &batch)?;
            backward(&self.tape, &part.sum, seed)?;
            totals = Some(match totals {
                None => Totals {
                    loss: part.sum.detach(),
                    weight: part.weight.detach(),
                    scalars: part.scalars,
                    seed,
                },
                Some(so_far) => so_far.plus(part)?,
            });
        }
        totals.ok_or(Error::NoData)
    }

    /// The context in which micro-batch `micro` of the next step is trained on.
    pub(crate) fn forward(&self, tape: &Tape, micro: usize) -> Forward {
        let seed = self.seed.fold_str("dropout").fold(self.step);
        let fwd = Forward::training(&self.params, tape, seed.fold(micro as u64))
            .with_precision(self.precision);
        match &self.recompute {
            Some(recompute) => fwd.with_recompute(recompute.clone()),
            None => fwd,
        }
    }

    /// Steps the optimizer with the accumulated gradients, unless the guard is against it. They are taken either way.
    pub fn apply(&mut self, totals: Totals) -> Result<StepOutput> {
        let count = self.gradients().count();
        if count == 0 {
            return Err(Error::NoGradient {
                step: self.step + 1,
            });
        }
        let squares = fused::sum_squares(self.device, count, self.gradients())?;
        let (grad_scale, grad_norm) =
            fused::clip_scale(&squares, &totals.divisor()?, self.max_grad_norm)?;
        let numbers = totals.read(&grad_norm)?;
        let lr = self.optimizer.lr() * self.schedule.factor(self.step);
        let verdict = self.guard.judge(numbers.loss, numbers.grad_norm);
        match verdict {
            Verdict::Apply | Verdict::Warn(_) => {
                self.optimizer.step(&StepContext { lr, grad_scale })?;
                self.step += 1;
            }
            Verdict::Skip(_) => {
                self.drop_gradients();
                self.step += 1;
            }
            Verdict::Stop(_) => self.drop_gradients(),
        }
        Ok(StepOutput {
            numbers,
            lr,
            verdict,
        })
    }

    /// Forgets what has been accumulated.
    pub(crate) fn drop_gradients(&self) {
        for (_, parameter) in self.params.iter() {
            parameter.take_grad();
        }
    }

    fn gradients(&self) -> impl Iterator<Item = Tensor> {
        self.params.iter().filter_map(|(_, p)| p.grad())
    }
}

/// Gradients of `seed` times the loss.
pub(crate) fn backward(tape: &Tape, loss: &Tensor, seed: f32) -> Result<()> {
    match seed {
        1.0 => tape.backward(loss)?,
        seed => tape.backward(&loss.affine(seed.into(), 0.0)?)?,
    }
    Ok(())
}

impl Totals {
    fn plus(self, part: Loss) -> Result<Self> {
        let scalars = self.scalars.into_iter().zip(part.scalars);
        let scalars = scalars.map(|((name, sum), (_, more))| Ok((name, sum.add(&more)?)));
        Ok(Self {
            loss: self.loss.add(&part.sum.detach())?,
            weight: self.weight.add(&part.weight.detach())?,
            scalars: scalars.collect::<Result<_>>()?,
            seed: self.seed,
        })
    }

    /// What the gradients are divided by to be those of the mean loss.
    fn divisor(&self) -> Result<Tensor> {
        Ok(match self.seed {
            1.0 => self.weight.clone(),
            seed => self.weight.affine(seed.into(), 0.0)?,
        })
    }

    /// The one read of a step.
    fn read(&self, grad_norm: &Tensor) -> Result<StepNumbers> {
        let mut parts = vec![
            self.loss.reshape(1)?,
            self.weight.reshape(1)?,
            grad_norm.reshape(1)?,
        ];
        for (_, scalar) in &self.scalars {
            parts.push(scalar.reshape(1)?);
        }
        let values = Tensor::cat(&parts, 0)?.to_vec::<f32>()?;
        // A step without a token to learn from has a loss of 0.
        let weight = values[1].max(f32::MIN_POSITIVE);
        let names = self.scalars.iter().map(|(name, _)| *name);
        Ok(StepNumbers {
            loss: values[0] / weight,
            grad_norm: values[2],
            scalars: names
                .zip(values[3..].iter().map(|sum| sum / weight))
                .collect(),
        })
    }
}
