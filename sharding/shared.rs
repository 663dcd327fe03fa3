//! A parameter of which ranks have parts: how it is put together, and how its gradient is summed.

use std::sync::Arc;

use half::{bf16, f16};
use tt_dist::{Communicator, Peers};
use tt_tensor::{DType, Device, Parameter, Shard, Tensor, WithDType};

use crate::error::Result;
use crate::links;
use crate::traffic::{Exchange, Traffic};

/// A parameter of which this rank has a part.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) parameter: Arc<Parameter>,
    /// Those that have the other parts.
    pub(crate) owners: Arc<dyn Communicator>,
    /// The same, to gather in another order than sums are made.
    pub(crate) gatherers: Arc<dyn Communicator>,
    /// Those that have the same part.
    pub(crate) replicas: Arc<dyn Communicator>,
    /// The others of `owners`: a rehearsed rank has none to ask.
    pub(crate) peers: Peers,
    /// The others of `replicas`.
    pub(crate) replica_peers: Peers,
    /// Elements of the largest part.
    pub(crate) largest_part: usize,
    /// It is sent rounded to bf16, as it is only used in products that round it so.
    pub(crate) in_bf16: bool,
    /// By rank of `owners`; none of a rehearsed one, which may have very many.
    pub(crate) parts: Arc<[Shard]>,
}

impl Shared {
    /// The whole of the parts that the ranks have.
    pub(crate) fn whole(&self) -> Result<Tensor> {
        let own = self.parameter.local();
        if self.in_bf16 && !is_rehearsed(&own) {
            let whole = self.whole_of::<bf16>(&own.to_dtype(DType::BF16)?)?;
            return Ok(whole.to_dtype(own.dtype())?);
        }
        match own.dtype() {
            DType::BF16 => self.whole_of::<bf16>(&own),
            DType::F16 => self.whole_of::<f16>(&own),
            _ => self.whole_of::<f32>(&own),
        }
    }

    fn whole_of<T>(&self, own: &Tensor) -> Result<Tensor>
    where
        T: WithDType + bytemuck::Pod,
    {
        let shape = self.parameter.shard().shape();
        if is_rehearsed(own) {
            return Ok(Tensor::zeros(shape, own.device())?.to_dtype(own.dtype())?);
        }
        if let Some(whole) = links::whole(own, &self.parts, &*self.gatherers)? {
            return Ok(whole);
        }
        let bytes = bytemuck::cast_slice(&own.to_vec::<T>()?).to_vec();
        let heard = self.gatherers.all_gather(bytes)?;
        // Others gather it too, from here.
        if self.parameter.shard().is_whole() {
            return Ok(own.clone());
        }
        let mut whole = vec![T::zeroed(); shape.iter().product()];
        for (part, bytes) in self.parts.iter().zip(&heard) {
            let mut rest = bytes.as_slice();
            for run in part.runs() {
                let place: &mut [u8] = bytemuck::cast_slice_mut(&mut whole[run]);
                let (values, more) = rest.split_at(place.len());
                place.copy_from_slice(values);
                rest = more;
            }
        }
        Ok(Tensor::from_slice(&whole, shape, own.device())?)
    }

    /// Counts [`Shared::whole`].
    pub(crate) fn count_gather(&self, traffic: &mut Traffic, is_ahead: bool) {
        let shard = self.parameter.shard();
        let missing = shard.shape().iter().product::<usize>() - num_elements(shard);
        let own = self.parameter.local().dtype();
        let sent = if self.in_bf16 { DType::BF16 } else { own };
        traffic.gathered_bytes += (missing * sent.size_in_bytes()) as u64;
        let exchanges = if is_ahead {
            &mut traffic.prefetches
        } else {
            &mut traffic.gathers
        };
        let largest = self.largest_part * sent.size_in_bytes();
        exchanges.add(Exchange::with_each(self.peers, largest));
    }

    /// Counts [`Shared::own_part_of_sum`].
    pub(crate) fn count_sum(&self, traffic: &mut Traffic) {
        let shard = self.parameter.shard();
        let own = num_elements(shard);
        let others = shard.shape().iter().product::<usize>() - own;
        let replicas = self.replica_peers.count() + 1;
        let sent = others + sent_to_sum(own, replicas);
        traffic.reduced_bytes += (sent * size_of::<f32>()) as u64;
        let largest = self.largest_part * size_of::<f32>();
        traffic.sums.add(Exchange::with_each(self.peers, largest));
        if replicas > 1 {
            let exchange = Exchange::to_sum(self.replica_peers, self.largest_part);
            traffic.sums.add(exchange);
        }
    }

    /// `grad` has the whole shape; gives the own part of its sum over all ranks.
    pub(crate) fn own_part_of_sum(&self, grad: &Tensor) -> Result<Tensor> {
        let shape = self.parameter.shard().local_shape();
        if is_rehearsed(grad) {
            return Ok(Tensor::zeros(shape, grad.device())?);
        }
        // Those that have links are all: nobody else has the same part.
        if let Some(own) = links::own_part_of_sum(grad, &self.parts, &*self.owners)? {
            return Ok(own);
        }
        let values = grad.to_vec::<f32>()?;
        // The parts one after another.
        let runs = || self.parts.iter().flat_map(Shard::runs);
        let mut end = 0;
        let are_in_order = runs().all(|run| std::mem::replace(&mut end, run.end) == run.start);
        let by_part = if are_in_order {
            values
        } else {
            runs().flat_map(|run| values[run].to_vec()).collect()
        };
        let shares: Vec<usize> = self.parts.iter().map(num_elements).collect();
        let own = self.owners.reduce_scatter(by_part, &shares)?;
        let own = match self.replica_peers.count() {
            0 => own,
            _ => self.replicas.all_reduce(own)?,
        };
        Ok(Tensor::from_slice(&own, shape, grad.device())?)
    }
}

fn num_elements(shard: &Shard) -> usize {
    shard.local_shape().iter().product()
}

/// Elements that each of `ranks` sends where each sums a part for all.
pub(crate) fn sent_to_sum(elements: usize, ranks: usize) -> usize {
    2 * elements * (ranks - 1) / ranks
}

/// Whether it has no memory.
pub(crate) fn is_rehearsed(tensor: &Tensor) -> bool {
    matches!(tensor.device(), Device::Meta(_))
}
