//! What a step adds up, on the device, and its numbers on the host.

use tt_tensor::Tensor;

use crate::Loss;
use crate::error::Result;

/// Sums over the micro-batches of a step, on the device.
pub struct Totals {
    /// Summed loss, f32 `[]`.
    pub loss: Tensor,
    /// What the loss is divided by, f32 `[]`.
    pub weight: Tensor,
    /// Further sums by name; each is divided by the weight when it is logged.
    pub scalars: Vec<(&'static str, Tensor)>,
    /// The gradients are those of the loss times this.
    pub(crate) seed: f32,
}

/// The numbers of a step on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StepNumbers {
    pub loss: f32,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f32,
    pub scalars: Vec<(&'static str, f32)>,
}

impl Totals {
    pub(crate) fn plus(self, part: Loss) -> Result<Self> {
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
    pub(crate) fn divisor(&self) -> Result<Tensor> {
        Ok(match self.seed {
            1.0 => self.weight.clone(),
            seed => self.weight.affine(seed.into(), 0.0)?,
        })
    }

    /// The one read of a step.
    pub(crate) fn read(&self, grad_norm: &Tensor) -> Result<StepNumbers> {
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
