//! What kernels take from the [pool](crate::pool) besides their operands, in f32 elements.
//!
//! Given by the functions that the kernels themselves take it with, so that a device without memory can account for it.
//! It depends on the shapes and on the number of threads of the current rayon pool.

use candle_core::{DType, Layout};

use crate::{AttentionParams, kernels};

/// [`FusedOps::matmul_into`](crate::FusedOps::matmul_into) for `a`, `b` and `out` of `types`: the buffers held at
/// once.
pub fn matmul(types: [DType; 3], a: &Layout, b: &Layout) -> Vec<usize> {
    let ([batch @ .., m, k], [.., n]) = (a.dims(), b.dims()) else {
        return Vec::new();
    };
    let ([.., a_row, a_col], [.., b_row, b_col]) = (a.stride(), b.stride()) else {
        return Vec::new();
    };
    let batches: usize = batch.iter().product();
    if batches * m * n == 0 {
        return Vec::new();
    }
    let (a, b) = ((*a_row, *a_col), (*b_row, *b_col));
    kernels::matmul::batched_scratch(types, batches, a, b, (*m, *k, *n))
}

/// [`FusedOps::sum_rows_into`](crate::FusedOps::sum_rows_into) of `[rows, cols]`.
pub fn sum_rows(rows: usize, cols: usize) -> usize {
    kernels::reduce::sum_rows_scratch(rows, cols)
}

/// [`FusedOps::rms_norm_backward`](crate::FusedOps::rms_norm_backward) of `[rows, dim]`.
pub fn rms_norm_backward(rows: usize, dim: usize, dweight: bool) -> usize {
    kernels::rms_norm::backward_scratch(rows, dim, dweight)
}

/// [`FusedOps::layer_norm_backward`](crate::FusedOps::layer_norm_backward) of `[rows, dim]`, with as many of the gradients of
/// weight and bias as are asked for.
pub fn layer_norm_backward(rows: usize, dim: usize, weights: usize) -> usize {
    kernels::layer_norm::backward_scratch(rows, dim, weights)
}

/// [`FusedOps::attention`](crate::FusedOps::attention) of `dtype`.
pub fn attention(dtype: DType, params: &AttentionParams) -> usize {
    kernels::attention::forward_scratch(dtype, params)
}

/// [`FusedOps::attention_backward`](crate::FusedOps::attention_backward) of `dtype`: the buffers
/// held at once, at each of its moments.
pub fn attention_backward(dtype: DType, params: &AttentionParams) -> Vec<Vec<usize>> {
    kernels::attention::backward_scratch(dtype, params)
}

/// [`FusedOps::linear_cross_entropy`](crate::FusedOps::linear_cross_entropy), or a pass of the losses of single tokens, for
/// hidden states and a head of `types`: the buffers held at once, at each moment that may be the greatest, if all rows have a
/// label.
pub fn linear_cross_entropy(
    types: [DType; 2],
    rows: usize,
    vocab: usize,
    dim: usize,
    backward: bool,
) -> Vec<Vec<usize>> {
    kernels::cross_entropy::linear_scratch(types, rows, vocab, dim, backward)
}
