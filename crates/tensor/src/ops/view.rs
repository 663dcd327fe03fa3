//! Views and copies: reshape, transpose, permute, narrow, expand, contiguous, cat.
//!
//! Views share memory. `reshape` copies only if the elements do not lie in order.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Shape};
use tt_cpu::FusedOps;

use crate::device::on_device;
use crate::error::{Error, Result};
use crate::tape::record;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements in order in a buffer of their own, or this tensor if they already lie in order.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout.is_contiguous() {
            return Ok(self.clone());
        }
        let out = self.copy()?;
        record("contiguous", &[self], out, |g| {
            let grad = g.output();
            g.add(0, grad)
        })
    }

    /// A copy in row-major order, off the tape.
    pub(crate) fn copy(&self) -> Result<Tensor> {
        let mut out = self.device.alloc(self.dtype, self.elem_count())?;
        let x = self.read();
        on_device!(self.device, S, {
            let (storage, layout) = x.view::<S>()?;
            storage.copy_strided_src(out.of::<S>()?, 0, layout)?
        });
        let shape = self.shape().clone();
        Ok(Tensor::from_output(out, self.dtype, self.device, shape))
    }

    /// The same elements in another shape. Error: another number of elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.elem_count() != self.elem_count() {
            return Err(Error::shapes("reshape", self.shape(), &shape));
        }
        let source = self.contiguous()?;
        let layout = Layout::contiguous_with_offset(shape, source.layout.start_offset());
        let before = source.shape().clone();
        let out = source.with_layout(layout);
        record("reshape", &[&source], out, move |g| {
            let grad = g.output().reshape(before)?;
            g.add(0, grad)
        })
    }

    /// Swaps two dims, without copying. Error: a dim that there is not.
    pub fn transpose(&self, dim1: usize, dim2: usize) -> Result<Tensor> {
        let out = self.with_layout(self.layout.transpose(dim1, dim2)?);
        record("transpose", &[self], out, move |g| {
            let grad = g.output().transpose(dim1, dim2)?.contiguous()?;
            g.add(0, grad)
        })
    }

    /// The transpose of a matrix, without copying. Error: another rank than 2.
    pub fn t(&self) -> Result<Tensor> {
        let [_, _] = self.dims_of("t")?;
        self.transpose(0, 1)
    }

    /// Reorders dims, without copying: dim `i` of the result is dim `dims[i]` of this. Error: no permutation of the dims.
    pub fn permute(&self, dims: &[usize]) -> Result<Tensor> {
        let out = self.with_layout(self.layout.permute(dims)?);
        let mut inverse = vec![0; dims.len()];
        for (i, &dim) in dims.iter().enumerate() {
            inverse[dim] = i;
        }
        record("permute", &[self], out, move |g| {
            let grad = g.output().permute(&inverse)?.contiguous()?;
            g.add(0, grad)
        })
    }

    /// Elements `start..start + len` of a dim, without copying. Error: a range that is not inside it.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        let out = self.with_layout(self.layout.narrow(dim, start, len)?);
        let whole = self.detach();
        record("narrow", &[self], out, move |g| {
            let grad = g.output();
            let (before, size) = (start, whole.dims()[dim]);
            let mut parts = Vec::with_capacity(3);
            for len in [before, size - before - len] {
                let mut dims = whole.dims().to_vec();
                dims[dim] = len;
                parts.push(Tensor::zeros(dims, whole.device)?.to_dtype(whole.dtype)?);
            }
            parts.insert(1, grad);
            g.add(0, Tensor::cat(&parts, dim)?)
        })
    }

    /// Repeats dims of size 1, and adds leading dims, without copying. Error: shapes that do not broadcast.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if self.shape() == &shape {
            return Ok(self.clone());
        }
        let out = self.with_layout(self.layout.broadcast_as(shape)?);
        let before = self.shape().clone();
        record("expand", &[self], out, move |g| {
            let grad = g.output().sum_to(&before)?;
            g.add(0, grad)
        })
    }

    /// Joins tensors along a dim, in order; the other dims, types and devices must agree.
    pub fn cat(parts: &[Tensor], dim: usize) -> Result<Tensor> {
        let Some(first) = parts.first() else {
            return Err(Error::invalid("cat", "no tensors"));
        };
        if dim >= first.rank() {
            let why = format!("dim {dim} of a tensor of shape {:?}", first.shape());
            return Err(Error::invalid("cat", why));
        }
        let mut dims = first.dims().to_vec();
        dims[dim] = 0;
        for part in parts {
            let agrees = part.rank() == first.rank()
                && (0..dims.len()).all(|d| d == dim || part.dims()[d] == dims[d]);
            if !agrees {
                return Err(Error::shapes("cat", first.shape(), part.shape()));
            }
            part.expect_dtype("cat", first.dtype)?;
            dims[dim] += part.dims()[dim];
        }
        let outer: usize = dims[..dim].iter().product();
        let inner: usize = dims[dim + 1..].iter().product();
        let row = dims[dim] * inner;
        let mut out = first.device.alloc(first.dtype, outer * row)?;
        let mut offset = 0;
        for part in parts {
            let part = part.contiguous()?;
            let width = part.dims()[dim] * inner;
            let x = part.read();
            on_device!(first.device, S, {
                let (storage, layout) = x.view::<S>()?;
                let start = layout.start_offset();
                storage.copy2d(out.of::<S>()?, outer, width, width, row, start, offset)?
            });
            offset += width;
        }
        let out = Tensor::from_output(out, first.dtype, first.device, dims);
        let widths: Vec<usize> = parts.iter().map(|part| part.dims()[dim]).collect();
        let inputs: Vec<&Tensor> = parts.iter().collect();
        record("cat", &inputs, out, move |g| {
            let grad = g.output();
            let mut start = 0;
            for (i, &width) in widths.iter().enumerate() {
                g.add(i, grad.narrow(dim, start, width)?.contiguous()?)?;
                start += width;
            }
            Ok(())
        })
    }

    /// The values in another dtype; the gradient is cast back.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype == dtype {
            return Ok(self.clone());
        }
        let out = if is_float(self.dtype) && is_float(dtype) {
            let source = self.contiguous()?;
            let mut out = self.device.alloc(dtype, self.elem_count())?;
            on_device!(self.device, S, {
                S::cast_into(source.read().view()?, out.of::<S>()?)?
            });
            out
        } else {
            let x = self.read();
            on_device!(self.device, S, {
                let (storage, layout) = x.view::<S>()?;
                crate::device::Output::from_backend(storage.to_dtype(layout, dtype)?)
            })
        };
        let out = Tensor::from_output(out, dtype, self.device, self.shape().clone());
        let before = self.dtype;
        record("to_dtype", &[self], out, move |g| {
            let grad = g.output().to_dtype(before)?;
            g.add(0, grad)
        })
    }
}

/// The types that our kernels cast between, into a pooled buffer, with threads.
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}
