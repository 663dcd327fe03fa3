//! The first tensor of a step that is not finite, as it is told.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first tensor that is not finite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub place: Place,
    /// The path of the weight, or of the module whose output it is; `loss` for the loss.
    pub tensor: String,
    /// The module it belongs to.
    pub module: String,
    /// Counted from 0; `None` for a weight, which was so before the step.
    pub micro_batch: Option<usize>,
    /// The rank that ran the micro-batch, if there are several.
    pub rank: Option<usize>,
    /// The rows of the micro-batch that it came of, counted from 0; empty where they cannot be told apart.
    pub rows: Vec<usize>,
    /// What it holds.
    pub values: Values,
    /// Of a weight that this process has changed.
    pub changed_by: Option<ChangedBy>,
}

/// What changed a weight last, whose gradient was finite then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangedBy {
    /// The name of the optimizer.
    pub optimizer: String,
    /// The step in which it did.
    pub step: u64,
}

/// Where in a step a tensor is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A weight: the step was lost before it began.
    Weight,
    /// The output of a module.
    Forward,
    /// The loss.
    Loss,
    /// The gradient of a weight.
    Backward,
}

/// What is in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Values {
    /// All elements.
    pub count: usize,
    /// Those that are NaN.
    pub nan: usize,
    /// Those that are infinite.
    pub infinite: usize,
    /// Of those that are finite; `None` if there are none.
    pub min: Option<f32>,
    /// The greatest of the finite ones; `None` if there is none.
    pub max: Option<f32>,
}

impl Values {
    pub(crate) fn of(values: &[f32]) -> Self {
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        Self {
            count: values.len(),
            nan: values.iter().filter(|x| x.is_nan()).count(),
            infinite: values.iter().filter(|x| x.is_infinite()).count(),
            min: finite().reduce(f32::min),
            max: finite().reduce(f32::max),
        }
    }

    /// Of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let of_both = |a: Option<f32>, b: Option<f32>, choose: fn(f32, f32) -> f32| {
            a.into_iter().chain(b).reduce(choose)
        };
        Self {
            count: self.count + other.count,
            nan: self.nan + other.nan,
            infinite: self.infinite + other.infinite,
            min: of_both(self.min, other.min, f32::min),
            max: of_both(self.max, other.max, f32::max),
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.nan + self.infinite == 0
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            nan,
            infinite,
            ..
        } = self;
        write!(f, "{nan} NaN and {infinite} infinite of {count} values")?;
        match (self.min, self.max) {
            (Some(min), Some(max)) => write!(f, ", the others from {min:e} to {max:e}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensor, values) = (&self.tensor, &self.values);
        match self.place {
            Place::Weight => {
                write!(
                    f,
                    "the weight `{tensor}` was not finite before the step: {values}"
                )?;
                return match &self.changed_by {
                    None => Ok(()),
                    Some(ChangedBy { optimizer, step }) => write!(
                        f,
                        "; the optimizer {optimizer} changed it last, at step {step}, by a finite gradient"
                    ),
                };
            }
            Place::Forward => write!(
                f,
                "it began in the forward pass, in the output of `{tensor}`"
            ),
            Place::Loss => write!(
                f,
                "it began in the loss, all modules before it gave finite outputs"
            ),
            Place::Backward => write!(
                f,
                "it began in the backward pass, in the gradient of `{tensor}`"
            ),
        }?;
        if let Some(micro) = self.micro_batch {
            write!(f, ", micro-batch {micro}")?;
        }
        if let Some(rank) = self.rank {
            write!(f, " on rank {rank}")?;
        }
        match &self.rows[..] {
            [] => {}
            [row] => write!(f, ", row {row}")?,
            rows => {
                let rows: Vec<_> = rows.iter().map(usize::to_string).collect();
                write!(f, ", rows {}", rows.join(", "))?;
            }
        }
        write!(f, ": {values}")
    }
}
