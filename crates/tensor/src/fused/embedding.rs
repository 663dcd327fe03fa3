//! Rows of a table by id: `y[..] = weight[ids[..]]`.
//!
//! Shapes: `weight` `[V, D]`, `ids` u32 of any shape, the result has `D` appended and is f32. Errors: an id that is not below `V`.
//! The gradient is added to the table's in place, in the order of the ids.

use candle_core::DType;
use tt_cpu::{FusedOps, Write};

use crate::device::{Backend, common_device, on_device};
use crate::error::Result;
use crate::fused::dense;
use crate::tape::record;
use crate::tensor::Tensor;

/// Rows of a table by id: `y[.., :] = weight[ids[..], :]`.
///
/// Shapes: `weight` `[V, D]`, `ids` u32 of any shape; the result has `D` appended and is f32. The gradient is added to the
/// table's in place, in the order of the ids. Errors: types that do not fit; an id that is not below `V`.
pub fn embedding(weight: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let device = common_device("embedding", &[weight.device, ids.device])?;
    let weight = dense("embedding", weight)?;
    let [_, dim] = weight.dims_of("embedding")?;
    ids.expect_dtype("embedding", DType::U32)?;
    let ids = ids.detach().contiguous()?;
    let mut dims = ids.dims().to_vec();
    dims.push(dim);
    let mut y = device.alloc(DType::F32, ids.elem_count() * dim)?;
    on_device!(device, S, {
        let (wr, ir) = (weight.read(), ids.read());
        S::embedding(wr.view()?, ir.view()?, y.of::<S>()?)?
    });
    let y = Tensor::from_output(y, DType::F32, device, dims);
    let (dtype, shape) = (weight.dtype, weight.shape().clone());
    record("embedding", &[&weight], y, move |g| {
        let dy = g.output().contiguous()?;
        g.write_shaped(0, (dtype, device, &shape), |dw, write| {
            on_device!(device, S, {
                let dw = S::of_mut(dw)?;
                if write == Write::Assign {
                    dw.fill(shape.elem_count(), 0.0)?;
                }
                let (ir, dyr) = (ids.read(), dy.read());
                S::embedding_backward(ir.view()?, dyr.view()?, dw)?
            });
            Ok(())
        })
    })
}
