//! What the ranks of a group can tell each other.

use std::sync::Arc;

use half::bf16;

use crate::error::{Error, Result};

/// A group of ranks, seen from one of them. All ranks of a group call the same methods in the same order.
///
/// Sums are taken in the order of the ranks, bf16 ones in f32: they have the same bits on every rank and in every run.
/// Errors: another rank has failed or is not heard of, see [`Error`]. The group is of no use then.
pub trait Communicator: Send + Sync {
    /// Which of the group this is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// The sums of each element over the ranks, on every rank. All give as many.
    fn all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>>;

    /// Of the sums of each element over the ranks, this rank's share: of `values`, which are the shares of all ranks one
    /// after another, `shares[i]` elements are those of rank i.
    fn reduce_scatter(&self, values: Vec<f32>, shares: &[usize]) -> Result<Vec<f32>>;

    /// [`Communicator::reduce_scatter`] of bf16 values; the sums are f32.
    fn reduce_scatter_bf16(&self, values: Vec<bf16>, shares: &[usize]) -> Result<Vec<f32>>;

    /// What each rank gives, by rank. They need not give equally much.
    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>>;

    /// What rank `root` gives; of the others, what they give is dropped.
    fn broadcast(&self, bytes: Vec<u8>, root: usize) -> Result<Arc<Vec<u8>>>;

    /// Gives `bytes` to rank `to`, which must [`Communicator::receive`] it. Does not wait for that.
    fn send(&self, bytes: Vec<u8>, to: usize) -> Result<()>;

    /// What rank `from` has sent, the first first.
    fn receive(&self, from: usize) -> Result<Vec<u8>>;

    /// Waits until all are there.
    fn barrier(&self) -> Result<()>;

    /// The ranks that give the same `color`, as a group of their own, in the order that they have here.
    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>>;

    /// Whether each of these ranks has a chip that is linked with those of the others and with no more, by the same number as
    /// its rank here: what is on the chips can then go over their links, once the ranks have met in a [`Communicator::barrier`].
    fn has_links(&self) -> bool {
        false
    }

    /// Tells all ranks, of this group and of those that it was split from or into, that this one has failed. Whatever they
    /// wait for ends with [`Error::Failed`]. The first reason counts.
    fn fail(&self, why: &str);

    /// What another rank has failed of, if it has ended something that this one waited for.
    fn failure(&self) -> Option<Error>;
}

/// A rank that no other answers: the only one, or one of a run that is rehearsed, where nothing is sent. What it hears is
/// what it has said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn reduce_scatter(&self, values: Vec<f32>, _shares: &[usize]) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn reduce_scatter_bf16(&self, values: Vec<bf16>, _shares: &[usize]) -> Result<Vec<f32>> {
        Ok(values.into_iter().map(bf16::to_f32).collect())
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        Ok(vec![Arc::new(bytes)])
    }

    fn broadcast(&self, bytes: Vec<u8>, _root: usize) -> Result<Arc<Vec<u8>>> {
        Ok(Arc::new(bytes))
    }

    fn send(&self, _bytes: Vec<u8>, to: usize) -> Result<()> {
        unreachable!("there is no rank {to} to send to")
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        unreachable!("there is no rank {from} to hear of")
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn split(&self, _color: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Self))
    }

    fn fail(&self, _why: &str) {}

    fn failure(&self) -> Option<Error> {
        None
    }
}
