//! `z = y + x W^T`: what a linear layer gives, added to what is there and in its memory, unless somebody else holds that.
//!
//! Shapes: `y` `[.., N]`, `x` `[.., K]` of the same type, `weight` `[N, K]`. Gradients: `dy = dz`, `dx = dz W`,
//! `dW += dz^T x`.

use tt_cpu::Write;

use crate::device::common_device;
use crate::error::{Error, Result};
use crate::fused::{dense, expect_shape};
use crate::ops::product;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// `y + x W^T`: what a linear layer gives, added to `y`, and in its memory unless somebody else holds that.
///
/// Shapes: `y` `[.., N]`, `x` `[.., K]` of the same type, `weight` `[N, K]`. Gradients: `dy = dz`, `dx = dz W`,
/// `dW += dz^T x`. Errors: shapes, types or devices that do not fit.
pub fn linear_onto(mut y: Tensor, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OP: &str = "linear_onto";
    common_device(OP, &[y.device, x.device, weight.device])?;
    let (x, weight) = (dense(OP, x)?, dense(OP, weight)?);
    let [outputs, inputs] = weight.dims_of(OP)?;
    if x.dims().last() != Some(&inputs) {
        return Err(Error::shapes(OP, x.shape(), weight.shape()));
    }
    let mut dims = x.dims().to_vec();
    *dims.last_mut().expect("rank checked above") = outputs;
    expect_shape(OP, &y, &dims)?;
    y.expect_dtype(OP, x.dtype)?;

    let rows = x.elem_count() / inputs.max(1);
    let matrix = move |x: &Tensor, columns| x.detach().reshape((rows, columns));
    let track = y.track.take();
    y.weight = None;
    let z = y.into_owned()?;
    let x_rows = matrix(&x, inputs)?;
    let transposed = weight.with_layout(weight.layout.transpose(0, 1)?);
    z.write(|z| product(&x_rows, &transposed, z, Write::Accumulate))?;

    // The place on the tape that `y` had; its values are gone.
    let y = Tensor { track, ..z.clone() };
    let (x_saved, w_saved) = (x.detach(), Saved::new(&weight));
    record(OP, &[&y, &x, &weight], z, move |g| {
        let dz = g.output().to_dtype(x_saved.dtype)?.contiguous()?;
        let dz_rows = matrix(&dz, outputs)?;
        if g.wanted(1) {
            let weight = w_saved.get();
            g.write(1, &x_saved, |dx, write| {
                product(&dz_rows, &weight, dx, write)
            })?;
        }
        if g.wanted(2) {
            let dz_t = dz_rows.with_layout(dz_rows.layout.transpose(0, 1)?);
            let (x, weight) = (matrix(&x_saved, inputs)?, w_saved.get());
            g.write(2, &weight, |dw, write| product(&dz_t, &x, dw, write))?;
        }
        g.add(0, dz)
    })
}
