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

    /// The sum over `dims`, which stay with size 1. Of `self`'s type. Error: a dim that there is not.
    pub fn sum_keepdim(&self, dims: &[usize]) -> Result<Tensor> {
        let out = self.reduce(ReduceOp::Sum, dims)?;
        let before = self.shape().clone();
        record("sum", &[self], out, move |g| {
            let grad = g.output().expand(before)?.contiguous()?;
            g.add(0, grad)
        })
    }

    /// The sum over `dims`, which are dropped: `[2, 3, 5]` over `[0, 2]` gives `[3]`. Of `self`'s type. Error: a dim that there
    /// is not.
    pub fn sum(&self, dims: &[usize]) -> Result<Tensor> {
        self.sum_keepdim(dims)?.drop_dims(dims)
    }

    /// The sum of all elements, shape `[]`.
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The mean over `dims`, which stay with size 1. Of `self`'s type. Error: a dim that there is not.
    pub fn mean_keepdim(&self, dims: &[usize]) -> Result<Tensor> {
        let sum = self.sum_keepdim(dims)?;
        let count: usize = dims.iter().map(|&dim| self.dims()[dim]).product();
        sum.affine(1.0 / count as f64, 0.0)
    }

    /// The mean over `dims`, which are dropped. Of `self`'s type. Error: a dim that there is not.
    pub fn mean(&self, dims: &[usize]) -> Result<Tensor> {
        self.mean_keepdim(dims)?.drop_dims(dims)
    }

    /// The largest element along a dim, which stays with size 1. At a tie the gradient goes to all that attain it. Error: a dim
    /// that there is not.
    pub fn max_keepdim(&self, dim: usize) -> Result<Tensor> {
        self.extremum("max", ReduceOp::Max, dim)
    }

    /// The smallest element along a dim, which stays with size 1. At a tie the gradient goes to all that attain it. Error: a dim
    /// that there is not.
    pub fn min_keepdim(&self, dim: usize) -> Result<Tensor> {
        self.extremum("min", ReduceOp::Min, dim)
    }

    /// The largest element along a dim, which is dropped. At a tie the gradient goes to all that attain it. Error: a dim that
    /// there is not.
    pub fn max(&self, dim: usize) -> Result<Tensor> {
        self.max_keepdim(dim)?.drop_dims(&[dim])
    }

    /// The smallest element along a dim, which is dropped. At a tie the gradient goes to all that attain it. Error: a dim that
    /// there is not.
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

    /// The position of the largest element along a dim, which is dropped: u32, the first one at a tie, without a gradient.
    /// Error: a dim that there is not.
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

    /// `log(sum(exp(x)))` along a dim, which stays with size 1; the largest element is taken out first, so that nothing
    /// overflows. Error: a dim that there is not.
    pub fn log_sum_exp_keepdim(&self, dim: usize) -> Result<Tensor> {
        let max = self.detach().max_keepdim(dim)?;
        self.sub(&max)?.exp()?.sum_keepdim(&[dim])?.log()?.add(&max)
    }

    /// `x - log(sum(exp(x)))` along a dim: logarithms of probabilities that sum to 1, of `self`'s shape. Error: a dim that
    /// there is not.
    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        self.sub(&self.log_sum_exp_keepdim(dim)?)
    }

    /// `exp(x) / sum(exp(x))` along a dim: probabilities that sum to 1, of `self`'s shape. Error: a dim that there is not.
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        self.log_softmax(dim)?.exp()
    }
}
