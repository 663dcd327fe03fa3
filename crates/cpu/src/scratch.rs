//! What kernels take from the [pool](crate::pool) besides their operands, in f32 elements.
//!
//! Given by the functions that the kernels themselves take it with, so that a device without memory can account for it.
//! It depends on the shapes and on the number of threads of the current rayon pool.

use candle_core::Layout;

use crate::{AttentionParams, kernels};

/// [`FusedOps::matmul_into`](crate::FusedOps::matmul_into); `None` if it takes nothing.
pub fn matmul(a: &Layout, b: &Layout) -> Option<usize> {
    let ([batch @ .., m, k], [.., n]) = (a.dims(), b.dims()) else {
        return None;
    };
    let ([.., a_row, a_col], [.., b_row, b_col]) = (a.stride(), b.stride()) else {
        return None;
    };
    let batches: usize = batch.iter().product();
    (batches * m * n > 0).then(|| {
        let (a, b) = ((*a_row, *a_col), (*b_row, *b_col));
        kernels::matmul::batched_scratch(batches, a, b, (*m, *k, *n))
    })
}

/// [`FusedOps::sum_rows_into`](crate::FusedOps::sum_rows_into) of `[rows, cols]`.
pub fn sum_rows(rows: usize, cols: usize) -> usize {
    kernels::reduce::sum_rows_scratch(rows, cols)
}

/// [`FusedOps::rms_norm_backward`](crate::FusedOps::rms_norm_backward) of `[rows, dim]`.
pub fn rms_norm_backward(rows: usize, dim: usize, dweight: bool) -> usize {
    kernels::rms_norm::backward_scratch(rows, dim, dweight)
}

/// [`FusedOps::attention`](crate::FusedOps::attention).
pub fn attention(params: &AttentionParams) -> usize {
    kernels::attention::forward_scratch(params)
}

/// [`FusedOps::attention_backward`](crate::FusedOps::attention_backward).
pub fn attention_backward(params: &AttentionParams) -> usize {
    kernels::attention::backward_scratch(params)
}

/// [`FusedOps::linear_cross_entropy`](crate::FusedOps::linear_cross_entropy): the buffers held at once, at each moment
/// that may be the greatest.
pub fn linear_cross_entropy(
    rows: usize,
    vocab: usize,
    dim: usize,
    backward: bool,
) -> Vec<Vec<usize>> {
    kernels::cross_entropy::linear_scratch(rows, vocab, dim, backward)
}
