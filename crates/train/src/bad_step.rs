//! A step that did not reach the weights: what is said of it.

use std::fmt;
use std::path::PathBuf;

use crate::finding::{Finding, Place};
use crate::guard::Cause;

/// A step that was skipped or ended its run.
#[derive(Clone, Debug, PartialEq)]
pub struct BadStep {
    /// The step, from 1.
    pub step: u64,
    /// What was wrong with it.
    pub cause: Cause,
    /// Its loss, nats per token.
    pub loss: f32,
    /// Its global gradient norm, before clipping.
    pub grad_norm: f32,
    /// What a search for the first tensor that is not finite has found, if there was one.
    pub finding: Option<Finding>,
    /// Whether such a search has been made to its end.
    pub is_examined: bool,
    /// Steps skipped just before this one.
    pub skipped_before: u64,
    /// Where its batch and a report are.
    pub dump: Option<PathBuf>,
}

impl BadStep {
    /// Whether it was the weights that were not finite, which no other batch mends.
    pub fn is_in_weights(&self) -> bool {
        let finding = self.finding.as_ref();
        finding.is_some_and(|finding| finding.place == Place::Weight)
    }
}

impl fmt::Display for BadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match &self.cause {
            Cause::NonFinite if self.loss.is_finite() => write!(
                f,
                "the gradient norm is {}, at a loss of {:.4}",
                self.grad_norm, self.loss
            )?,
            Cause::NonFinite => write!(f, "the loss is {}", self.loss)?,
            Cause::Overflow { scale } => write!(
                f,
                "a gradient overflows at a loss scale of {}",
                f64::from(*scale)
            )?,
            Cause::Spike(spike) => write!(f, "{spike}")?,
        }
        if self.skipped_before > 0 {
            write!(f, ", after {} skipped in a row", self.skipped_before)?;
        }
        match (&self.finding, &self.cause) {
            (Some(finding), _) => write!(f, "\n  {finding}")?,
            (None, Cause::NonFinite) if self.is_examined => write!(
                f,
                "\n  run again, every output and gradient is finite: a sum of gradients, or of their squares, is not"
            )?,
            _ => {}
        }
        if let Some(dump) = &self.dump {
            write!(f, "\n  its batch and a report are in {}", dump.display())?;
        }
        Ok(())
    }
}
