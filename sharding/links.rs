//! What ranks with linked chips exchange without their hosts: the same parts and sums, over the chips' links.
//!
//! The kernels know equal shares of one dim alone. Shares that differ are sent as if all were as large as the largest, and
//! summed as if everybody wanted all. `None`: it does not go over links, as the ranks have none between them and no others,
//! the tensors are not on chips, or a parameter is cut along two dims.

use tt_dist::Communicator;
use tt_tensor::{Collective, DType, Device, Shard, Tensor};

use crate::error::{Error, Result};

/// Whether what is on `device` may go over links between `ranks`.
fn are_there(ranks: &dyn Communicator, device: Device) -> bool {
    matches!(device, Device::Tpu(_)) && ranks.has_links()
}

/// How a parameter is shared out.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    /// One has all.
    Owner(usize),
    /// Along this dim, in the order of the ranks.
    Along(usize),
}

fn cut(parts: &[Shard]) -> Option<Cut> {
    if let Some(owner) = parts.iter().position(Shard::is_whole) {
        return Some(Cut::Owner(owner));
    }
    let shape = parts.first()?.shape();
    let is_cut = |dim: &usize| parts.iter().any(|it| it.ranges()[*dim] != (0..shape[*dim]));
    let mut dims = (0..shape.len()).filter(is_cut);
    let dim = dims.next().filter(|_| dims.next().is_none())?;
    let mut end = 0;
    let is_next = |part: &Shard| {
        let range = &part.ranges()[dim];
        std::mem::replace(&mut end, range.end) == range.start
    };
    let is_all = parts.iter().all(is_next) && end == shape[dim];
    is_all.then_some(Cut::Along(dim))
}

fn num_elements(shard: &Shard) -> usize {
    shard.local_shape().iter().product()
}

fn exchange(tensor: &Tensor, collective: Collective, ranks: &dyn Communicator) -> Result<Tensor> {
    tensor.over_links(collective, || ranks.barrier().map_err(Error::from))
}

/// The whole of which this rank has `own`, the part with its number.
pub(crate) fn whole(
    own: &Tensor,
    parts: &[Shard],
    ranks: &dyn Communicator,
) -> Result<Option<Tensor>> {
    let (dtype, device) = (own.dtype(), own.device());
    if !are_there(ranks, device) {
        return Ok(None);
    }
    let (shape, largest) = (parts[0].shape(), parts.iter().map(num_elements).max());
    let largest = largest.unwrap_or(0);
    let dim = match cut(parts) {
        None => return Ok(None),
        Some(Cut::Owner(root)) => {
            let is_own = root == ranks.rank();
            let given = if is_own {
                own.clone()
            } else {
                Tensor::uninitialised(shape, dtype, device)?
            };
            let heard = exchange(&given, Collective::Broadcast { root }, ranks)?;
            let whole = if is_own { own } else { &heard };
            return Ok(Some(whole.reshape(shape)?));
        }
        Some(Cut::Along(dim)) => dim,
    };
    let len = own.elem_count();
    let mut given = own.reshape(len)?;
    if len < largest {
        let rest = Tensor::uninitialised(largest - len, dtype, device)?;
        given = Tensor::cat(&[given, rest], 0)?;
    }
    let heard = exchange(&given, Collective::AllGather, ranks)?;
    if dim == 0 && heard.elem_count() == shape.iter().product::<usize>() {
        return Ok(Some(heard.reshape(shape)?));
    }
    let part = |(rank, shard): (usize, &Shard)| {
        let values = heard.narrow(0, rank * largest, num_elements(shard))?;
        values.reshape(shard.local_shape())
    };
    let there = parts.iter().enumerate();
    let there = there.filter(|(_, shard)| num_elements(shard) > 0);
    let there: tt_tensor::Result<Vec<Tensor>> = there.map(part).collect();
    Ok(Some(Tensor::cat(&there?, dim)?))
}

/// Of the sum of `grad` over the ranks, the part of this one.
pub(crate) fn own_part_of_sum(
    grad: &Tensor,
    parts: &[Shard],
    ranks: &dyn Communicator,
) -> Result<Option<Tensor>> {
    if !are_there(ranks, grad.device()) || grad.dtype() != DType::F32 {
        return Ok(None);
    }
    let own = &parts[ranks.rank()];
    let len = num_elements(own);
    match cut(parts) {
        None => Ok(None),
        Some(Cut::Along(dim)) if parts.iter().all(|it| num_elements(it) == len) => {
            let part = |shard: &Shard| {
                let range = &shard.ranges()[dim];
                grad.narrow(dim, range.start, range.len())?.reshape(len)
            };
            let given = if dim == 0 {
                grad.clone()
            } else {
                let by_rank: tt_tensor::Result<Vec<Tensor>> = parts.iter().map(part).collect();
                Tensor::cat(&by_rank?, 0)?
            };
            let sum = exchange(&given, Collective::ReduceScatter, ranks)?;
            Ok(Some(sum.reshape(own.local_shape())?))
        }
        Some(cut) => {
            let sum = exchange(grad, Collective::AllReduce, ranks)?;
            let sum = sum.reshape(own.shape())?;
            Ok(Some(match cut {
                _ if len == 0 => Tensor::zeros(own.local_shape(), grad.device())?,
                Cut::Owner(_) => sum,
                Cut::Along(dim) => {
                    let range = &own.ranges()[dim];
                    // A part of its own: the whole is let go.
                    let own = sum.narrow(dim, range.start, range.len())?;
                    Tensor::cat(&[own], dim)?
                }
            }))
        }
    }
}

/// The sum of what all hold whole.
pub(crate) fn sum(grad: &Tensor, ranks: &dyn Communicator) -> Result<Option<Tensor>> {
    if !are_there(ranks, grad.device()) || grad.dtype() != DType::F32 {
        return Ok(None);
    }
    let sum = exchange(grad, Collective::AllReduce, ranks)?;
    Ok(Some(sum.reshape(grad.dims())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(shape: &[usize], parts: &[&[std::ops::Range<usize>]]) -> Vec<Shard> {
        let shard = |ranges: &&[std::ops::Range<usize>]| Shard::new(shape, ranges.to_vec());
        parts
            .iter()
            .map(shard)
            .collect::<tt_tensor::Result<_>>()
            .unwrap()
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "of one dim")]
    fn a_cut_along_one_dim_goes_over_links_and_one_along_two_does_not() {
        let rows = parts(&[5, 4], &[&[0..2, 0..4], &[2..5, 0..4]]);
        assert_eq!(cut(&rows), Some(Cut::Along(0)));
        let columns = parts(&[5, 4], &[&[0..5, 0..1], &[0..5, 1..4]]);
        assert_eq!(cut(&columns), Some(Cut::Along(1)));
        let with_none = parts(&[1], &[&[0..0], &[0..1]]);
        assert_eq!(cut(&with_none), Some(Cut::Owner(1)));
        let fewer_than_ranks = parts(&[2], &[&[0..0], &[0..1], &[1..1], &[1..2]]);
        assert_eq!(cut(&fewer_than_ranks), Some(Cut::Along(0)));
        let both = [[0..1, 0..2], [0..1, 2..4], [1..2, 0..2], [1..2, 2..4]];
        let both: Vec<&[_]> = both.iter().map(|it| &it[..]).collect();
        assert_eq!(cut(&parts(&[2, 4], &both)), None);
        let of_another_order = parts(&[4], &[&[2..4], &[0..2]]);
        assert_eq!(cut(&of_another_order), None);
    }
}
