//! What the ranks of a run tell each other in a step, so that all of them make the same one.

use tt_nn::ParamTree;
use tt_tensor::Tensor;

use crate::error::Result;
use crate::totals::{StepNumbers, Totals};

/// The parts of a step that go over all ranks; as it stands, those of one rank alone. Every rank calls each of them at the
/// same point of the same step.
pub trait Reduce: Send {
    /// Whether the step is to be broken off: if any rank is asked to stop. Asked before each micro-batch.
    fn is_stopped(&self, this_rank: bool) -> Result<bool> {
        Ok(this_rank)
    }

    /// Makes the sums those over all ranks.
    fn totals(&self, _totals: &mut Totals) -> Result<()> {
        Ok(())
    }

    /// Makes the gradients those over all ranks, of each parameter the part that its shard says.
    fn gradients(&self, _params: &ParamTree) -> Result<()> {
        Ok(())
    }

    /// The sum of squares of all gradients, f32 `[1]`, from that of this rank's.
    fn sum_squares(&self, this_rank: Tensor) -> Result<Tensor> {
        Ok(this_rank)
    }

    /// The numbers that all ranks judge the step by: one rank's.
    fn numbers(&self, this_rank: StepNumbers) -> Result<StepNumbers> {
        Ok(this_rank)
    }
}

/// One rank.
pub struct Local;

impl Reduce for Local {}
