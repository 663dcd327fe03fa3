//! A run's changing parts, and the two halves of a step that every trainer is made of.
//!
//! [`Training::accumulate`] adds the gradients of summed losses over micro-batches; [`Training::apply`] divides by
//! the weight of the whole step, reads its numbers, which is the step's one read, and lets the optimizer move if
//! they are what they should be.

use std::sync::Arc;

use tt_collators::Batch;
use tt_metrics::Scalar;
use tt_models::Model;
use tt_nn::{Forward, ParamTree, Recompute};
use tt_optimizers::Optimizers;
use tt_tensor::{Device, GradientHook, Precision, Seed, Tape, Tensor, fused};

use crate::Loss;
use crate::adapted::Adapted;
use crate::device_batch::DeviceBatch;
use crate::error::{Error, Result};
use crate::guard::{StepGuard, Verdict};

/// Model, parameters, optimizers and position of a run.
pub struct Training {
    pub model: Arc<dyn Model>,
    pub params: ParamTree,
    pub optimizers: Optimizers,
    pub clipping: Clipping,
    /// Every how many steps the optimizers' metrics are made.
    pub metrics_interval: Option<u64>,
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

/// How gradients of the mean loss are bounded: first all by their norm, then each element by its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clipping {
    pub max_norm: Option<f64>,
    pub max_value: Option<f64>,
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
    /// Rate of the step, the first optimizer's if there are several.
    pub lr: f64,
    /// What the optimizers report by name: of several each one's rate, and their metrics where they are due.
    pub of_optimizers: Vec<(String, Scalar)>,
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
        params: ParamTree,
        optimizers: Optimizers,
        seed: Seed,
        device: Device,
    ) -> Self {
        Self {
            model,
            params,
            optimizers,
            clipping: Clipping::default(),
            metrics_interval: None,
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
            let fwd = self.forward(&self.tape, self.step, micro);
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

    /// Calls `hook` with each parameter whose gradient for a micro-batch is complete.
    pub(crate) fn on_gradient(&self, hook: GradientHook) {
        self.tape.on_gradient(hook);
    }

    /// The context in which micro-batch `micro` is trained on once `steps` are done.
    pub(crate) fn forward(&self, tape: &Tape, steps: u64, micro: usize) -> Forward {
        let seed = self.seed.fold_str("dropout").fold(steps);
        let fwd = Forward::training(&self.params, tape, seed.fold(micro as u64))
            .with_precision(self.precision);
        match &self.recompute {
            Some(recompute) => fwd.with_recompute(recompute.clone()),
            None => fwd,
        }
    }

    /// Steps the optimizers with the accumulated gradients, unless the guard is against it. They are taken either way.
    pub fn apply(&mut self, totals: Totals) -> Result<StepOutput> {
        let count = self.gradients().count();
        if count == 0 {
            return Err(Error::NoGradient {
                step: self.step + 1,
            });
        }
        let squares = fused::sum_squares(self.device, count, self.gradients())?;
        let (grad_scale, grad_norm) =
            fused::clip_scale(&squares, &totals.divisor()?, self.clipping.max_norm)?;
        let numbers = totals.read(&grad_norm)?;
        let mut of_optimizers = self.rates();
        let lr = of_optimizers.first().map_or(0.0, |(_, lr)| lr.to_f64());
        if self.optimizers.len() == 1 {
            of_optimizers.clear();
        }
        let verdict = self.guard.judge(numbers.loss, numbers.grad_norm);
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
        self.optimizers
            .step(self.step, &grad_scale, wants_metrics)?;
        if !wants_metrics {
            return Ok(Vec::new());
        }
        let (names, values): (Vec<_>, Vec<_>) = self.optimizers.metrics()?.into_iter().unzip();
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let values: Vec<Tensor> = values
            .iter()
            .map(|value| value.reshape(1))
            .collect::<tt_tensor::Result<_>>()?;
        let values = Tensor::cat(&values, 0)?.to_vec::<f32>()?;
        Ok(names
            .into_iter()
            .zip(values.into_iter().map(Scalar::from))
            .collect())
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
