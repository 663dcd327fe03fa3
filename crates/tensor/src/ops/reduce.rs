//! Reductions over dims, and the softmax family built from them.
//!
//! Dims are kept with size 1 by the `_keepdim` forms and dropped by the others. At a tie the gradient
//! of `max` and `min` goes to every element that attains it.

use candle_core::backend::BackendStorage;
use candle_core::op::ReduceOp;
use candle_core::{DType, Shape};

use crate::device::{Output, on_device};
use crate::error::{Error, Result};
use crate::tape::record;
use crate::tensor::Tensor;

impl Tensor {
    fn reduce(&self, op: ReduceOp, dims: &[usize]) -> Result<Tensor> {
        if let Some(dim) = dims.iter().find(|&&dim| dim >= self.rank()) {
            let why = format!("dim {dim} of a tensor of shape {:?}", self.shape());
            return Err(Error::invalid("reduce", why));
        }
        let x = self.read();
        let out = on_device!(self.device, S, {
            let (storage, layout) = x.view::<S>()?;
            Output::from_backend(storage.reduce_op(op, layout, dims)?)
        });
        let dtype = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => DType::U32,
            _ => self.dtype,
        };
        let mut shape = self.dims().to_vec();
        dims.iter().for_each(|&dim| shape[dim] = 1);
        Ok(Tensor::from_output(out, dtype, self.device, shape))
    }

    fn drop_dims(&self, dims: &[usize]) -> Result<Tensor> {
        let kept = self.dims().iter().enumerate();
        let kept: Vec<_> = kept.filter(|(i, _)| !dims.contains(i)).collect();
        self.reshape(kept.into_iter().map(|(_, &size)| size).collect::<Vec<_>>())
    }

    pub fn sum_keepdim(&self, dims: &[usize]) -> Result<Tensor> {
        let out = self.reduce(ReduceOp::Sum, dims)?;
        let before = self.shape().clone();
        record("sum", &[self], out, move |g| {
            let grad = g.output().expand(before)?.contiguous()?;
            g.add(0, grad)
        })
    }

    pub fn sum(&self, dims: &[usize]) -> Result<Tensor> {
        self.sum_keepdim(dims)?.drop_dims(dims)
    }

    /// The sum of all elements, shape `[]`.
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    pub fn mean_keepdim(&self, dims: &[usize]) -> Result<Tensor> {
        let sum = self.sum_keepdim(dims)?;
        let count: usize = dims.iter().map(|&dim| self.dims()[dim]).product();
        sum.affine(1.0 / count as f64, 0.0)
    }

    pub fn mean(&self, dims: &[usize]) -> Result<Tensor> {
        self.mean_keepdim(dims)?.drop_dims(dims)
    }

    pub fn max_keepdim(&self, dim: usize) -> Result<Tensor> {
        self.extremum("max", ReduceOp::Max, dim)
    }

    pub fn min_keepdim(&self, dim: usize) -> Result<Tensor> {
        self.extremum("min", ReduceOp::Min, dim)
    }

    pub fn max(&self, dim: usize) -> Result<Tensor> {
        self.max_keepdim(dim)?.drop_dims(&[dim])
    }

    pub fn min(&self, dim: usize) -> Result<Tensor> {
        self.min_keepdim(dim)?.drop_dims(&[dim])
    }

    fn extremum(&self, name: &'static str, op: ReduceOp, dim: usize) -> Result<Tensor> {
        let out = self.reduce(op, &[dim])?;
        let (x, y) = (self.detach(), out.clone());
        record(name, &[self], out, move |g| {
            let attains = x.eq(&y)?.to_dtype(x.dtype)?;
            let grad = attains.mul(&g.output())?;
            g.add(0, grad)
        })
    }

    /// The position of the largest element along a dim, u32, the first one at a tie.
    pub fn argmax(&self, dim: usize) -> Result<Tensor> {
        self.reduce(ReduceOp::ArgMax, &[dim])?.drop_dims(&[dim])
    }

    /// Sums away what broadcasting from `shape` repeated.
    pub(crate) fn sum_to(&self, shape: &Shape) -> Result<Tensor> {
        let extra = self.rank() - shape.rank();
        let repeated: Vec<usize> = (0..self.rank())
            .filter(|&dim| dim < extra || (shape.dims()[dim - extra] == 1 && self.dims()[dim] != 1))
            .collect();
        let summed = if repeated.is_empty() {
            self.contiguous()?
        } else {
            self.sum_keepdim(&repeated)?
        };
        summed.reshape(shape.clone())
    }

    /// `log(sum(exp(x)))` along a dim, kept with size 1; the largest element is taken out first.
    pub fn log_sum_exp_keepdim(&self, dim: usize) -> Result<Tensor> {
        let max = self.detach().max_keepdim(dim)?;
        self.sub(&max)?.exp()?.sum_keepdim(&[dim])?.log()?.add(&max)
    }

    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        self.sub(&self.log_sum_exp_keepdim(dim)?)
    }

    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        self.log_softmax(dim)?.exp()
    }
}
