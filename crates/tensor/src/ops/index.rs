//! Selecting and adding by index: index_select, index_add, gather, scatter_add.
//!
//! Indices are u32 or i64. Errors: candle's, for an index out of range.

use candle_core::backend::BackendStorage;

use crate::device::{Output, on_device};
use crate::error::{Error, Result};
use crate::tape::record;
use crate::tensor::Tensor;

impl Tensor {
    /// Rows `ids` of a dim, in their order: `self` with that dim replaced by `ids`' length. `ids` is of rank 1, u32 or i64.
    ///
    /// Errors: a dim that there is not; an id beyond it.
    pub fn index_select(&self, ids: &Tensor, dim: usize) -> Result<Tensor> {
        let [count] = ids.dims_of("index_select")?;
        self.expect_dim("index_select", dim)?;
        let (x, i) = (self.read(), ids.read());
        let out = on_device!(self.device, S, {
            let ((xs, xl), (is, il)) = (x.view::<S>()?, i.view::<S>()?);
            Output::from_backend(xs.index_select(is, xl, il, dim)?)
        });
        let mut dims = self.dims().to_vec();
        dims[dim] = count;
        let out = Tensor::from_output(out, self.dtype, self.device, dims);
        let (shape, ids) = (self.shape().clone(), ids.detach());
        record("index_select", &[self], out, move |g| {
            let grad = g.output();
            let zeros = Tensor::zeros(shape, grad.device)?.to_dtype(grad.dtype)?;
            g.add(0, zeros.index_add(&ids, &grad, dim)?)
        })
    }

    /// This tensor with row `j` of `source` added to row `ids[j]` of a dim; rows may be named twice. `ids` is of rank 1, u32 or
    /// i64, as long as that dim of `source`, whose other dims are `self`'s.
    ///
    /// Errors: a dim that there is not; an id beyond it; shapes that do not fit.
    pub fn index_add(&self, ids: &Tensor, source: &Tensor, dim: usize) -> Result<Tensor> {
        self.expect_dim("index_add", dim)?;
        let (x, i, s) = (self.read(), ids.read(), source.read());
        let out = on_device!(self.device, S, {
            let ((xs, xl), (is, il)) = (x.view::<S>()?, i.view::<S>()?);
            let (ss, sl) = s.view::<S>()?;
            Output::from_backend(xs.index_add(xl, is, il, ss, sl, dim)?)
        });
        let out = Tensor::from_output(out, self.dtype, self.device, self.shape().clone());
        let ids = ids.detach();
        record("index_add", &[self, source], out, move |g| {
            let grad = g.output();
            if g.wanted(1) {
                g.add(1, grad.index_select(&ids, dim)?)?;
            }
            g.add(0, grad)
        })
    }

    /// Elements by index along a dim: `out[i][j][k] = self[i][ids[i][j][k]][k]` for dim 1, and so on. `ids` is u32 or i64, of
    /// `self`'s rank, and gives the result its shape: the log-probability of a token `[B, T]` is
    /// `log_p.gather(&ids.reshape((b, t, 1))?, 2)?`.
    ///
    /// Errors: a dim that there is not; an id beyond it.
    pub fn gather(&self, ids: &Tensor, dim: usize) -> Result<Tensor> {
        self.expect_dim("gather", dim)?;
        let source = self.contiguous()?;
        let ids = ids.contiguous()?;
        let (x, i) = (source.read(), ids.read());
        let out = on_device!(self.device, S, {
            let ((xs, xl), (is, il)) = (x.view::<S>()?, i.view::<S>()?);
            Output::from_backend(xs.gather(xl, is, il, dim)?)
        });
        drop(i);
        let out = Tensor::from_output(out, self.dtype, self.device, ids.shape().clone());
        let (shape, ids) = (source.shape().clone(), ids.detach());
        record("gather", &[&source], out, move |g| {
            let grad = g.output();
            let zeros = Tensor::zeros(shape, grad.device)?.to_dtype(grad.dtype)?;
            g.add(0, zeros.scatter_add(&ids, &grad, dim)?)
        })
    }

    /// This tensor with `source` added at the places that [`Tensor::gather`] would read.
    pub fn scatter_add(&self, ids: &Tensor, source: &Tensor, dim: usize) -> Result<Tensor> {
        self.expect_dim("scatter_add", dim)?;
        let (ids, source) = (ids.contiguous()?, source.contiguous()?);
        let out = self.copy()?;
        let (i, s) = (ids.read(), source.read());
        on_device!(self.device, S, {
            out.write(|storage| {
                use crate::device::Backend;
                let ((is, il), (ss, sl)) = (i.view::<S>()?, s.view::<S>()?);
                Ok(S::of_mut(storage)?.scatter_add_set(&out.layout, is, il, ss, sl, dim)?)
            })?
        });
        drop((i, s));
        let ids = ids.detach();
        record("scatter_add", &[self, &source], out, move |g| {
            let grad = g.output();
            if g.wanted(1) {
                g.add(1, grad.gather(&ids, dim)?)?;
            }
            g.add(0, grad)
        })
    }

    fn expect_dim(&self, op: &'static str, dim: usize) -> Result<()> {
        if dim >= self.rank() {
            let why = format!("dim {dim} of a tensor of shape {:?}", self.shape());
            return Err(Error::invalid(op, why));
        }
        Ok(())
    }
}
