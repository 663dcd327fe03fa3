//! A tensor of the run on its way into a checkpoint: held by handle, and read a slice at a time while it is written.

use std::ops::Range;

use tt_checkpoint::{Dtype, SourceError, TensorSource};
use tt_sharding::{Pieces, Sharded};
use tt_tensor::{DType, Parameter, Shard, Tensor, WithDType};

use crate::error::Result;

pub(crate) struct SavedTensor {
    value: Tensor,
    shard: Shard,
    /// Where several ranks have it.
    pieces: Option<Pieces>,
}

impl SavedTensor {
    /// `value` is the part `shard` of what is saved.
    ///
    /// Of `ranks` that share a model, all do this together, and read the same ranges in the same order.
    pub(crate) fn new(value: Tensor, shard: Shard, ranks: Option<&Sharded>) -> Result<Self> {
        let pieces = ranks.map(|ranks| Pieces::new(value.clone(), &shard, ranks.world()));
        Ok(Self {
            pieces: pieces.transpose()?,
            value,
            shard,
        })
    }

    pub(crate) fn of(parameter: &Parameter, ranks: Option<&Sharded>) -> Result<Self> {
        Self::new(parameter.local(), parameter.shard().clone(), ranks)
    }

    fn is_bf16(&self) -> bool {
        self.value.dtype() == DType::BF16
    }

    fn append<T>(&self, elements: Range<usize>, out: &mut Vec<u8>) -> tt_tensor::Result<()>
    where
        T: WithDType + bytemuck::NoUninit,
    {
        /// Small enough to stay in a cache between the two copies.
        const PIECE: usize = 1 << 17;
        let mut piece = Vec::<T>::new();
        for start in elements.clone().step_by(PIECE) {
            let end = elements.end.min(start + PIECE);
            self.value.read_range_into(start..end, &mut piece)?;
            out.extend_from_slice(bytemuck::cast_slice(&piece));
        }
        Ok(())
    }
}

impl TensorSource for SavedTensor {
    fn dtype(&self) -> Dtype {
        if self.is_bf16() {
            Dtype::BF16
        } else {
            Dtype::F32
        }
    }

    fn shape(&self) -> &[usize] {
        self.shard.shape()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> std::result::Result<(), SourceError> {
        let width = self.dtype().bitsize() / 8;
        let elements = range.start / width..range.end / width;
        if let Some(pieces) = &self.pieces {
            if self.is_bf16() {
                pieces.append::<half::bf16>(elements, out)?;
            } else {
                pieces.append::<f32>(elements, out)?;
            }
            return Ok(());
        }
        let local = self.shard.local(elements);
        let local = local.ok_or("a part of it is held by another rank")?;
        if self.is_bf16() {
            self.append::<half::bf16>(local, out)?;
        } else {
            self.append::<f32>(local, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tt_tensor::Device;

    use super::*;

    #[test]
    fn a_part_is_read_where_the_whole_has_it() {
        let shard = Shard::new([4, 2], vec![1..3, 0..2]).unwrap();
        let value = Tensor::from_slice(&[2f32, 3., 4., 5.], (2, 2), Device::Cpu).unwrap();
        let saved = SavedTensor::new(value, shard, None).unwrap();
        assert_eq!((saved.shape(), saved.num_bytes()), (&[4, 2][..], 32));
        let mut bytes = Vec::new();
        saved.read(12..24, &mut bytes).unwrap();
        assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&[3., 4., 5.]));
        let error = saved.read(0..12, &mut bytes).unwrap_err();
        assert_eq!(error.to_string(), "a part of it is held by another rank");
    }
}
