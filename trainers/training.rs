//! A run's changing parts, and the two halves of a step that every trainer is made of.
//!
//! [`Training::accumulate`] adds the gradients of summed losses over micro-batches;
//! [`Training::apply`] divides by the weight of the whole step, clips, and lets the optimizer move.
//! Nothing is read back to the host before [`StepOutput`] is.

use std::sync::Arc;

use tt_collators::Batch;
use tt_models::Model;
use tt_nn::{Forward, ParamTree, Recompute};
use tt_optimizers::{Optimizer, Schedule, StepContext};
use tt_tensor::{Device, Seed, Tape, Tensor, fused};

use crate::Loss;
use crate::device_batch::DeviceBatch;
use crate::error::{Error, Result};

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
    /// Optimizer steps done.
    pub step: u64,
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
}

/// The numbers of a step, still on the device.
pub struct StepOutput {
    pub totals: Totals,
    /// Rate of the step.
    pub lr: f64,
    /// Global L2 norm of the gradient before clipping, f32 `[]`.
    pub grad_norm: Tensor,
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
            step: 0,
            tape: Tape::new(),
        }
    }

    /// Runs `loss` forward and backward on each micro-batch and adds up gradients and sums.
    pub fn accumulate(
        &mut self,
        micro_batches: &[Batch],
        loss: impl Fn(&Forward, &dyn Model, &DeviceBatch) -> Result<Loss>,
    ) -> Result<Totals> {
        let mut totals: Option<Totals> = None;
        for (micro, batch) in micro_batches.iter().enumerate() {
            let seed = self
                .seed
                .fold_str("dropout")
                .fold(self.step)
                .fold(micro as u64);
            let mut fwd = Forward::training(&self.params, &self.tape, seed);
            if let Some(recompute) = &self.recompute {
                fwd = fwd.with_recompute(recompute.clone());
            }
            let batch = DeviceBatch::upload(batch, self.device)?;
            let part = loss(&fwd, &*self.model, &batch)?;
            self.tape.backward(&part.sum)?;
            totals = Some(match totals {
                None => Totals {
                    loss: part.sum.detach(),
                    weight: part.weight.detach(),
                    scalars: part.scalars,
                },
                Some(so_far) => so_far.plus(part)?,
            });
        }
        totals.ok_or(Error::NoData)
    }

    /// Steps the optimizer with the accumulated gradients, which it takes.
    pub fn apply(&mut self, totals: Totals) -> Result<StepOutput> {
        let count = self.gradients().count();
        if count == 0 {
            return Err(Error::NoGradient {
                step: self.step + 1,
            });
        }
        let squares = fused::sum_squares(self.device, count, self.gradients())?;
        let (grad_scale, grad_norm) =
            fused::clip_scale(&squares, &totals.weight, self.max_grad_norm)?;
        let lr = self.optimizer.lr() * self.schedule.factor(self.step);
        self.optimizer.step(&StepContext { lr, grad_scale })?;
        self.step += 1;
        Ok(StepOutput {
            totals,
            lr,
            grad_norm,
        })
    }

    fn gradients(&self) -> impl Iterator<Item = Tensor> {
        self.params.iter().filter_map(|(_, p)| p.grad())
    }
}

impl Totals {
    fn plus(self, part: Loss) -> Result<Self> {
        let scalars = self.scalars.into_iter().zip(part.scalars);
        let scalars = scalars.map(|((name, sum), (_, more))| Ok((name, sum.add(&more)?)));
        Ok(Self {
            loss: self.loss.add(&part.sum.detach())?,
            weight: self.weight.add(&part.weight.detach())?,
            scalars: scalars.collect::<Result<_>>()?,
        })
    }
}

/// The numbers of a step on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StepNumbers {
    pub loss: f32,
    pub grad_norm: f32,
    pub scalars: Vec<(&'static str, f32)>,
}

impl StepOutput {
    /// The one read of a step.
    pub fn read(&self) -> Result<StepNumbers> {
        let Totals {
            loss,
            weight,
            scalars,
        } = &self.totals;
        let mut parts = vec![
            loss.reshape(1)?,
            weight.reshape(1)?,
            self.grad_norm.reshape(1)?,
        ];
        for (_, scalar) in scalars {
            parts.push(scalar.reshape(1)?);
        }
        let values = Tensor::cat(&parts, 0)?.to_vec::<f32>()?;
        // A step without a token to learn from has a loss of 0.
        let weight = values[1].max(f32::MIN_POSITIVE);
        let names = scalars.iter().map(|(name, _)| *name);
        Ok(StepNumbers {
            loss: values[0] / weight,
            grad_norm: values[2],
            scalars: names
                .zip(values[3..].iter().map(|sum| sum / weight))
                .collect(),
        })
    }
}
