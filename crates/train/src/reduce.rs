//! What the ranks of a run tell each other in a step, so that all of them make the same one.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tt_nn::ParamTree;
use tt_sharding::Sharded;
use tt_tensor::{Parameter, Tensor};

use crate::error::Result;
use crate::share::Share;
use crate::totals::{StepNumbers, Totals};

/// The parts of a step that go over all ranks; as it stands, those of one rank alone. Every rank calls each of them at the
/// same point of the same step.
pub trait Reduce: Send {
    /// Which of the micro-batches are this rank's.
    fn share(&self) -> Share {
        Share::default()
    }

    /// Whether the step is to be broken off: if any rank is asked to stop. Asked before each micro-batch.
    fn is_stopped(&self, this_rank: bool) -> Result<bool> {
        Ok(this_rank)
    }

    /// Targets of the step over all ranks, from those of this one.
    fn num_targets(&self, this_rank: usize) -> Result<usize> {
        Ok(this_rank)
    }

    /// A pass over a micro-batch is over, forward alone or backward too.
    fn end_pass(&self) {}

    /// The step is broken off, or what was looked at has been seen: nothing of it is needed any more.
    fn forget(&self) {}

    /// Makes the sums those over all ranks.
    fn totals(&self, _totals: &mut Totals) -> Result<()> {
        Ok(())
    }

    /// Makes the gradients those over all ranks, of each parameter the part that its shard says.
    fn gradients(&self, _params: &ParamTree) -> Result<()> {
        Ok(())
    }

    /// Whether this rank counts the gradient in its sum of squares: over all ranks, each element is counted once.
    fn counts(&self, _parameter: &Parameter) -> bool {
        true
    }

    /// The sum of squares of all gradients, f32 `[1]`, from those of this rank's, `[count]`.
    fn sum_squares(&self, this_rank: Tensor) -> Result<Tensor> {
        Ok(this_rank)
    }

    /// The sum of each value over all ranks.
    fn sums(&self, this_rank: Vec<f32>) -> Result<Vec<f32>> {
        Ok(this_rank)
    }

    /// What each rank gives, by rank.
    fn gather(&self, this_rank: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        Ok(vec![Arc::new(this_rank)])
    }

    /// The numbers that all ranks judge the step by: one rank's.
    fn numbers(&self, this_rank: StepNumbers) -> Result<StepNumbers> {
        Ok(this_rank)
    }
}

/// What each rank has found, by rank.
pub(crate) fn found_by_all<T>(reduce: &dyn Reduce, this_rank: &T) -> Result<Vec<T>>
where
    T: Serialize + DeserializeOwned,
{
    let bytes = serde_json::to_vec(this_rank).expect("names and finite numbers");
    let all = reduce.gather(bytes)?;
    let read = |bytes: &Arc<Vec<u8>>| serde_json::from_slice(bytes).expect("as it was written");
    Ok(all.iter().map(read).collect())
}

/// One rank.
pub struct Local;

impl Reduce for Local {}

/// The ranks that share a model.
pub struct Ranks(pub Arc<Sharded>);

impl Reduce for Ranks {
    fn share(&self) -> Share {
        let world = self.0.world();
        Share {
            rank: world.rank(),
            ranks: world.size(),
        }
    }

    fn is_stopped(&self, this_rank: bool) -> Result<bool> {
        Ok(self.0.any(this_rank)?)
    }

    fn num_targets(&self, this_rank: usize) -> Result<usize> {
        Ok(self.0.all_reduce(vec![this_rank as f32])?[0] as usize)
    }

    fn end_pass(&self) {
        self.0.end_pass();
    }

    fn forget(&self) {
        self.0.forget();
    }

    fn totals(&self, totals: &mut Totals) -> Result<()> {
        let sums = totals.sums_mut();
        let each = sums.iter().map(|sum| sum.reshape(1));
        let together = Tensor::cat(&each.collect::<tt_tensor::Result<Vec<_>>>()?, 0)?;
        let summed = self.0.all_reduce(together.to_vec::<f32>()?)?;
        for (sum, value) in sums.into_iter().zip(summed) {
            *sum = Tensor::from_slice(&[value], sum.dims(), sum.device())?;
        }
        Ok(())
    }

    fn gradients(&self, params: &ParamTree) -> Result<()> {
        Ok(self.0.sum_gradients(params)?)
    }

    fn counts(&self, parameter: &Parameter) -> bool {
        self.0.counts(parameter)
    }

    fn sum_squares(&self, this_rank: Tensor) -> Result<Tensor> {
        let own: f32 = this_rank.to_vec::<f32>()?.iter().sum();
        let summed = self.0.all_reduce(vec![own])?;
        Ok(Tensor::from_slice(&summed, 1, this_rank.device())?)
    }

    fn sums(&self, this_rank: Vec<f32>) -> Result<Vec<f32>> {
        Ok(self.0.all_reduce(this_rank)?)
    }

    fn gather(&self, this_rank: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        Ok(self
            .0
            .world()
            .all_gather(this_rank)
            .map_err(tt_sharding::Error::from)?)
    }
}
