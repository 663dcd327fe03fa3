//! Tensors on the host as a file holds them: a type, a shape, and little-endian bytes.

use half::{bf16, f16};
use indexmap::IndexMap;
use safetensors::Dtype;

use crate::error::{Error, Result};

/// One tensor, row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTensor {
    /// The number format.
    pub dtype: Dtype,
    /// How many elements there are in each dim.
    pub shape: Vec<usize>,
    /// The elements, row by row, little-endian.
    pub bytes: Vec<u8>,
}

/// Named tensors in the order in which they will be written.
pub type TensorMap<T = HostTensor> = IndexMap<String, T>;

impl HostTensor {
    /// `values` in row-major order; their number must be the product of `shape`, which is
    /// checked when the tensor is written.
    pub fn from_f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> Self {
        Self {
            dtype: Dtype::F32,
            shape: shape.into(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }

    /// `values` rounded to the nearest of half the width.
    pub fn from_f32_as_bf16(shape: impl Into<Vec<usize>>, values: &[f32]) -> Self {
        let bytes = values.iter().map(|&x| bf16::from_f32(x).to_le_bytes());
        Self {
            dtype: Dtype::BF16,
            shape: shape.into(),
            bytes: bytes.flatten().collect(),
        }
    }

    /// `values` rounded to the nearest of half the width; what is too large becomes infinite.
    pub fn from_f32_as_f16(shape: impl Into<Vec<usize>>, values: &[f32]) -> Self {
        let bytes = values.iter().map(|&x| f16::from_f32(x).to_le_bytes());
        Self {
            dtype: Dtype::F16,
            shape: shape.into(),
            bytes: bytes.flatten().collect(),
        }
    }

    /// A tensor of bf16 numbers, row by row.
    pub fn from_bf16(shape: impl Into<Vec<usize>>, values: &[bf16]) -> Self {
        Self {
            dtype: Dtype::BF16,
            shape: shape.into(),
            bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// A tensor of u32 numbers, row by row.
    pub fn from_u32(shape: impl Into<Vec<usize>>, values: &[u32]) -> Self {
        Self {
            dtype: Dtype::U32,
            shape: shape.into(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }

    /// A tensor of i64 numbers, row by row.
    pub fn from_i64(shape: impl Into<Vec<usize>>, values: &[i64]) -> Self {
        Self {
            dtype: Dtype::I64,
            shape: shape.into(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }
}

/// The number of elements; `None` if the shape overflows.
pub(crate) fn num_elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
}

/// That `num_bytes` are as many as type and shape ask for.
pub(crate) fn check_size(
    name: &str,
    dtype: Dtype,
    shape: &[usize],
    num_bytes: usize,
) -> Result<()> {
    let bits = num_elements(shape).and_then(|n| n.checked_mul(dtype.bitsize()));
    if bits.is_some_and(|bits| bits % 8 == 0 && bits / 8 == num_bytes) {
        return Ok(());
    }
    Err(Error::TensorSize {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        actual_bytes: num_bytes,
    })
}
