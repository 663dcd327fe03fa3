//! Matrix products, two-dimensional and batched, of operands with any strides.
//!
//! Shapes: `a` is `[.., m, k]`, `b` is `[.., k, n]` with equal leading dims (expand to broadcast); the result
//! is `[.., m, n]`. Gradients: `da = dc b^T`, `db = a^T dc`, accumulated in place.

use tt_cpu::{FusedOps, Write};

use crate::device::{Backend, common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::expect_float;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

impl Tensor {
    /// The matrix product: `self` `[.., m, k]` times `rhs` `[.., k, n]` is `[.., m, n]`, of the type of both.
    ///
    /// Leading dims must be equal: nothing is broadcast, [`Tensor::expand`] does that without copying. Strides may be any, so
    /// a transposed operand costs nothing. Gradients: `da = dc b^T`, `db = a^T dc`.
    /// Errors: shapes, types or devices that do not fit; a rank below 2.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        common_device("matmul", &[self.device, rhs.device])?;
        expect_float("matmul", self)?;
        rhs.expect_dtype("matmul", self.dtype)?;
        let mismatch = || Error::shapes("matmul", self.shape(), rhs.shape());
        let rank = self.rank();
        if rank < 2 || rhs.rank() != rank {
            return Err(mismatch());
        }
        let (batch, [m, k]) = (&self.dims()[..rank - 2], last_two(self));
        let (rhs_batch, [rhs_k, n]) = (&rhs.dims()[..rank - 2], last_two(rhs));
        if batch != rhs_batch || k != rhs_k {
            return Err(mismatch());
        }
        let mut dims = batch.to_vec();
        dims.extend([m, n]);
        let mut out = self.device.alloc(self.dtype, dims.iter().product())?;
        let (a, b) = (self.read(), rhs.read());
        on_device!(self.device, S, {
            S::matmul_into(a.view()?, b.view()?, out.of::<S>()?, Write::Assign)?
        });
        let out = Tensor::from_output(out, self.dtype, self.device, dims);
        let (lhs_saved, rhs_saved) = (Saved::new(self), Saved::new(rhs));
        record("matmul", &[self, rhs], out, move |g| {
            let dc = g.output();
            let (a, b) = (lhs_saved.get(), rhs_saved.get());
            g.write(0, &a, |da, write| product(&dc, &swap(&b)?, da, write))?;
            g.write(1, &b, |db, write| product(&swap(&a)?, &dc, db, write))
        })
    }
}

fn last_two(tensor: &Tensor) -> [usize; 2] {
    let rank = tensor.rank();
    [tensor.dims()[rank - 2], tensor.dims()[rank - 1]]
}

/// Transposes the last two dims, off the tape.
fn swap(tensor: &Tensor) -> Result<Tensor> {
    let rank = tensor.rank();
    Ok(tensor.with_layout(tensor.layout.transpose(rank - 2, rank - 1)?))
}

/// `out (+)= a . b`, off the tape.
pub(crate) fn product(
    a: &Tensor,
    b: &Tensor,
    out: &mut crate::device::Storage,
    write: Write,
) -> Result<()> {
    let (x, y) = (a.read(), b.read());
    on_device!(a.device, S, {
        S::matmul_into(x.view()?, y.view()?, S::of_mut(out)?, write)?
    });
    Ok(())
}
