//! Fused operations: one kernel each, forward and backward, through [`tt_cpu::FusedOps`].
//!
//! Each states its formula and shapes; the tests hold it against a composition of primitive operations.

mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod linear;
mod linear_onto;
mod norm;
mod rope;
mod step;
mod swiglu;

pub use attention::{Attention, attention};
pub use cross_entropy::{CrossEntropy, linear_cross_entropy};
pub use dropout::dropout;
pub use embedding::embedding;
pub use linear::linear;
pub use linear_onto::linear_onto;
pub use norm::rms_norm;
pub use rope::{rope, rope_tables};
pub use step::{StepSums, clip_scale, clip_value, combine, optimizer_step, sum_squares};
pub use swiglu::swiglu;

use candle_core::DType;

use crate::device::Output;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A contiguous f32 operand of a kernel.
fn dense(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    tensor.expect_dtype(op, DType::F32)?;
    tensor.contiguous()
}

/// An operand whose last dim is contiguous, as attention and RoPE take it.
fn rows(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    tensor.expect_dtype(op, DType::F32)?;
    match tensor.layout().stride().last() {
        Some(1) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}

/// An f32 buffer of `like`'s size on its device.
fn alloc_like(like: &Tensor) -> Output {
    like.device.alloc(DType::F32, like.elem_count())
}

fn finish(out: Output, like: &Tensor) -> Tensor {
    Tensor::from_output(out, DType::F32, like.device, like.shape().clone())
}

fn expect_shape(op: &'static str, tensor: &Tensor, dims: &[usize]) -> Result<()> {
    if tensor.dims() != dims {
        return Err(Error::shapes(op, tensor.shape(), &dims.into()));
    }
    Ok(())
}
