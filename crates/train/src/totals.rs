//! What a step adds up, on the device, and its numbers on the host.

use tt_tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::loss::{Loss, Mean};

/// Sums over the micro-batches of a step, on the device.
pub struct Totals {
    /// Summed loss, f32 `[]`.
    pub loss: Tensor,
    /// What the loss is divided by, f32 `[]`.
    pub weight: Tensor,
    /// Further sums by name, each divided when it is logged.
    pub scalars: Vec<Mean>,
    /// The gradients are those of the loss times this.
    pub(crate) seed: f32,
}

/// The numbers of a step on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StepNumbers {
    /// Mean over the step, nats per token.
    pub loss: f32,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Means of the trainer's further numbers, by name.
    pub scalars: Vec<(&'static str, f32)>,
}

impl Totals {
    /// Those of a first part.
    pub(crate) fn new(part: Loss, seed: f32) -> Self {
        Self {
            loss: part.sum.detach(),
            weight: part.weight,
            scalars: part.scalars,
            seed,
        }
    }

    /// Error: the part has other scalars than those before it.
    pub(crate) fn plus(self, part: Loss) -> Result<Self> {
        let names = |scalars: &[Mean]| -> Vec<_> {
            let all = scalars.iter();
            all.map(|it| (it.name, it.weight.is_some())).collect()
        };
        let (before, now) = (names(&self.scalars), names(&part.scalars));
        if before != now {
            return Err(Error::Trainer(format!(
                "the scalars of a step's micro-batches are not the same: {before:?}, then {now:?} (name, with a weight)"
            )));
        }
        let scalars = self.scalars.into_iter().zip(part.scalars);
        let scalars = scalars.map(|(so_far, more)| {
            let weight = match (&so_far.weight, &more.weight) {
                (Some(weight), Some(more)) => Some(weight.add(more)?),
                _ => None,
            };
            Ok(Mean {
                name: so_far.name,
                sum: so_far.sum.add(&more.sum)?,
                weight,
            })
        });
        Ok(Self {
            loss: self.loss.add(&part.sum.detach())?,
            weight: self.weight.add(&part.weight)?,
            scalars: scalars.collect::<Result<_>>()?,
            seed: self.seed,
        })
    }

    /// Those of nothing.
    pub(crate) fn zero(device: Device) -> Result<Self> {
        Ok(Self {
            loss: Tensor::zeros((), device)?,
            weight: Tensor::zeros((), device)?,
            scalars: Vec::new(),
            seed: 1.0,
        })
    }

    /// All that is summed.
    pub(crate) fn sums_mut(&mut self) -> Vec<&mut Tensor> {
        let scalars = self.scalars.iter_mut();
        let scalars = scalars.flat_map(|it| std::iter::once(&mut it.sum).chain(it.weight.as_mut()));
        [&mut self.loss, &mut self.weight]
            .into_iter()
            .chain(scalars)
            .collect()
    }

    /// What the gradients are divided by to be those of the mean loss.
    pub(crate) fn divisor(&self) -> Result<Tensor> {
        Ok(match self.seed {
            1.0 => self.weight.clone(),
            seed => self.weight.affine(seed.into(), 0.0)?,
        })
    }

    /// The mean loss, read by itself; `None` if nothing weighs anything.
    pub(crate) fn mean(&self) -> Result<Option<f32>> {
        let weight = self.weight.reshape(1)?.to_scalar::<f32>()?;
        let sum = self.loss.reshape(1)?.to_scalar::<f32>()?;
        Ok((weight > 0.0).then(|| sum / weight))
    }

    /// The one read of a step.
    pub(crate) fn read(&self, grad_norm: &Tensor) -> Result<StepNumbers> {
        let mut parts = vec![
            self.loss.reshape(1)?,
            self.weight.reshape(1)?,
            grad_norm.reshape(1)?,
        ];
        for scalar in &self.scalars {
            parts.push(scalar.sum.reshape(1)?);
            parts.push(scalar.weight.as_ref().unwrap_or(&self.weight).reshape(1)?);
        }
        let values = Tensor::cat(&parts, 0)?.to_vec::<f32>()?;
        // A step without a token to learn from has a loss of 0.
        let mean = |sum: f32, weight: f32| sum / weight.max(f32::MIN_POSITIVE);
        let scalars = self.scalars.iter().zip(values[3..].chunks_exact(2));
        Ok(StepNumbers {
            loss: mean(values[0], values[1]),
            grad_norm: values[2],
            scalars: scalars
                .map(|(scalar, value)| (scalar.name, mean(value[0], value[1])))
                .collect(),
        })
    }
}
