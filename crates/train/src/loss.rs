//! What a trainer makes of a micro-batch: sums, on the device.

use tt_tensor::{DType, Tensor};

use crate::error::{Error, Result};

/// The loss of a micro-batch, on the device.
pub struct Loss {
    /// Summed, not averaged; tracked. The loop divides by the weight of the whole step. f32, one element.
    pub sum: Tensor,
    /// What the sum is to be divided by, f32, one element: usually the number of tokens with a label.
    pub weight: Tensor,
    /// Further numbers to log; the same names in every step. Validation logs its own, which may be others, as `val_NAME`.
    pub scalars: Vec<Mean>,
}

/// A number to log beside the loss: a sum over the tokens (or rows, or pairs) of a micro-batch, and what sums over a whole
/// step, or the whole of validation, are divided by.
pub struct Mean {
    /// As it is logged.
    pub name: &'static str,
    /// f32, one element.
    pub sum: Tensor,
    /// f32, one element; `None`: the weight of the loss.
    pub weight: Option<Tensor>,
}

impl Mean {
    /// Divided by the weight of the loss.
    pub fn new(name: &'static str, sum: Tensor) -> Self {
        Self {
            name,
            sum,
            weight: None,
        }
    }

    /// Divided by a weight of its own, such as a number of rows.
    #[must_use]
    pub fn over(self, weight: Tensor) -> Self {
        Self {
            weight: Some(weight),
            ..self
        }
    }
}

impl Loss {
    /// With all but the sum off the tape. Error: what is no sum, by its name.
    pub(crate) fn checked(self) -> Result<Self> {
        let sums = [("the loss", &self.sum), ("the loss's weight", &self.weight)];
        for (name, tensor) in sums {
            check(name, tensor)?;
        }
        let scalars = self.scalars.into_iter().map(|scalar| {
            let Mean { name, sum, weight } = scalar;
            check(&format!("the scalar `{name}`"), &sum)?;
            if let Some(weight) = &weight {
                check(&format!("the weight of the scalar `{name}`"), weight)?;
            }
            Ok(Mean {
                name,
                sum: sum.detach(),
                weight: weight.map(|weight| weight.detach()),
            })
        });
        Ok(Self {
            scalars: scalars.collect::<Result<_>>()?,
            weight: self.weight.detach(),
            sum: self.sum,
        })
    }
}

fn check(what: &str, tensor: &Tensor) -> Result<()> {
    if tensor.elem_count() == 1 && tensor.dtype() == DType::F32 {
        return Ok(());
    }
    let (dims, dtype) = (tensor.dims(), tensor.dtype());
    Err(Error::Trainer(format!(
        "{what} is {dims:?} of {dtype:?} where one f32 is due: a sum, as `sum_all` makes it"
    )))
}
