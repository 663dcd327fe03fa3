//! Fused operations: one kernel each, forward and backward, through [`tt_cpu::FusedOps`], or what saves as much memory by
//! being made in pieces.
//!
//! Activations are f32, bf16 or f16 and keep their type, gradients too; arithmetic is f32, but products take their
//! operands in the type of the activation. Weights are f32, or 16-bit where they are frozen; their gradients are f32.
//! Each states its formula and shapes; the tests hold it against a composition of primitive operations.

mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod gelu;
mod head;
mod layer_norm;
mod linear;
mod linear_onto;
mod norm;
mod rope;
mod step;
mod swiglu;
mod token_loss;

pub use attention::{Attention, attention};
pub use cross_entropy::{CrossEntropy, linear_cross_entropy};
pub use dropout::dropout;
pub use embedding::embedding;
pub use head::{Head, logits};
pub use layer_norm::layer_norm;
pub use linear::{linear, linear_in_out};
pub use linear_onto::linear_onto;
pub use norm::rms_norm;
pub use rope::{rope, rope_tables};
pub use step::{
    StepSums, clip_scale, clip_value, combine, optimizer_step, product_f32, sum_squares,
};
pub use swiglu::swiglu;
pub use token_loss::{linear_log_probs, linear_token_losses};

use candle_core::DType;

use crate::device::Output;
use crate::error::{Error, Result};
use crate::ops::is_float;
use crate::tensor::Tensor;

/// A contiguous operand of a kernel.
fn dense(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    expect_float(op, tensor)?;
    tensor.contiguous()
}

/// The same, f32.
fn dense_f32(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    tensor.expect_dtype(op, DType::F32)?;
    tensor.contiguous()
}

pub(crate) fn expect_float(op: &'static str, tensor: &Tensor) -> Result<()> {
    if is_float(tensor.dtype) {
        return Ok(());
    }
    tensor.expect_dtype(op, DType::F32)
}

/// An operand whose last dim is contiguous, as attention and RoPE take it.
fn rows(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    expect_float(op, tensor)?;
    match tensor.layout().stride().last() {
        Some(1) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}

/// A buffer of `like`'s size and type on its device.
fn alloc_like(like: &Tensor) -> Result<Output> {
    like.device.alloc(like.dtype, like.elem_count())
}

fn finish(out: Output, like: &Tensor) -> Tensor {
    Tensor::from_output(out, like.dtype, like.device, like.shape().clone())
}

fn expect_shape(op: &'static str, tensor: &Tensor, dims: &[usize]) -> Result<()> {
    if tensor.dims() != dims {
        return Err(Error::shapes(op, tensor.shape(), &dims.into()));
    }
    Ok(())
}
