//! Where the bytes of a tensor come from when it is written: asked for piece by piece, in the order of the file, so that
//! no second copy of a model need ever be held.

use std::cell::RefCell;
use std::ops::Range;

use safetensors::Dtype;

use crate::error::SourceError;
use crate::tensor::HostTensor;

/// A tensor that can be written to a file.
pub trait TensorSource {
    /// Its number format.
    fn dtype(&self) -> Dtype;

    /// Of the whole tensor, whatever part of it is held here.
    fn shape(&self) -> &[usize];

    /// Its length in bytes: elements times the bytes of each.
    fn num_bytes(&self) -> usize {
        let elements = self.shape().iter().copied().fold(1, usize::saturating_mul);
        elements.saturating_mul(self.dtype().bitsize()) / 8
    }

    /// Appends bytes `range` of the tensor, row-major and little-endian, to `out`. One range follows the other from the
    /// first byte to the last, and each holds whole elements.
    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError>;
}

impl TensorSource for HostTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError> {
        out.extend_from_slice(&self.bytes[range]);
        Ok(())
    }
}

impl<T: TensorSource> TensorSource for &T {
    fn dtype(&self) -> Dtype {
        (**self).dtype()
    }

    fn shape(&self) -> &[usize] {
        (**self).shape()
    }

    fn num_bytes(&self) -> usize {
        (**self).num_bytes()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError> {
        (**self).read(range, out)
    }
}

type MakeTensor<'a> = Box<dyn Fn() -> Result<HostTensor, SourceError> + 'a>;

/// A tensor that is made when its first bytes are asked for, and let go after its last.
pub struct LazyTensor<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    make: MakeTensor<'a>,
    made: RefCell<Option<HostTensor>>,
}

impl<'a> LazyTensor<'a> {
    /// `make` must give a tensor of this type and shape.
    pub fn new(
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        make: impl Fn() -> Result<HostTensor, SourceError> + 'a,
    ) -> Self {
        Self {
            dtype,
            shape: shape.into(),
            make: Box::new(make),
            made: RefCell::new(None),
        }
    }
}

impl TensorSource for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError> {
        let mut made = self.made.borrow_mut();
        let tensor = match &mut *made {
            Some(tensor) => tensor,
            empty => empty.insert((self.make)()?),
        };
        let bytes = tensor.bytes.get(range.clone());
        out.extend_from_slice(bytes.ok_or("it was made smaller than it was said to be")?);
        if range.end == self.num_bytes() {
            *made = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_lazy_tensor_is_made_once_and_let_go_with_its_last_bytes() {
        let times_made = Cell::new(0);
        let lazy = LazyTensor::new(Dtype::F32, [3], || {
            times_made.set(times_made.get() + 1);
            Ok(HostTensor::from_f32([3], &[1.0, 2.0, 3.0]))
        });
        assert_eq!(times_made.get(), 0);
        let mut bytes = Vec::new();
        lazy.read(0..8, &mut bytes).unwrap();
        lazy.read(8..12, &mut bytes).unwrap();
        assert_eq!(bytes, HostTensor::from_f32([3], &[1.0, 2.0, 3.0]).bytes);
        assert_eq!(times_made.get(), 1);
        assert!(lazy.made.borrow().is_none());
    }
}
