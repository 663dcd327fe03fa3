//! Forward: one task per (batch, head, block of queries).
//!
//! Per block of keys, with the running maximum `m` and sum `l` of each query:
//! `m' = max(m, max s)`, `p = exp(s - m')`, `l' = l exp(m - m') + sum p`, `o' = o exp(m - m') + p . v`; at the end
//! `out = o / l` and `lse = m + ln l`.

use candle_core::DType;

use super::{
    KEYS, QUERIES, QueryBlock, Seen, Segments, mask, seen, times_keys, times_keys_len, work,
};
use crate::check::Heads;
use crate::element::Element;
use crate::kernels::elementwise::scale_piece;
use crate::kernels::matmul::{
    Matrix, Target, multiply, multiply_len, pack, pack_len, pack_or_read, pack_or_read_len,
};
use crate::par::{self, Shared};
use crate::pool::carve;
use crate::simd::{self, vectorize};
use crate::{AttentionParams, Write};

pub(crate) fn forward<T: Element>(
    p: &AttentionParams,
    q: Heads<T>,
    k: Heads<T>,
    v: Heads<T>,
    segments: Segments,
    out: &mut [T],
    lse: &mut [f32],
) {
    let blocks = QueryBlock::count(p);
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    let len = scratch_per_thread(T::DTYPE, p);
    par::for_each_with(tasks(p), work(p), len, &|task, scratch| {
        let (index, head) = (task % blocks, task / blocks % p.heads);
        let block = QueryBlock::new(p, task / blocks / p.heads, index);
        one_block(p, q, k, v, segments, head, block, out, lse, scratch);
    });
}

fn tasks(p: &AttentionParams) -> usize {
    p.batch * p.heads * QueryBlock::count(p)
}

fn scratch_per_thread(dtype: DType, p: &AttentionParams) -> usize {
    (p.head_dim + KEYS) * QUERIES
        + pack_len(dtype, p.head_dim, QUERIES)
        + pack_or_read_len(dtype, DType::F32, KEYS, QUERIES)
        + product_len(dtype, p.head_dim)
}

/// Elements of scratch that [`forward`] takes for operands of this type.
pub(crate) fn forward_scratch(dtype: DType, p: &AttentionParams) -> usize {
    par::scratch_len(tasks(p), work(p), scratch_per_thread(dtype, p))
}

/// Scratch of the two products.
fn product_len(dtype: DType, dim: usize) -> usize {
    let values = multiply_len(dtype, dtype, DType::F32, dim, (dim, KEYS, QUERIES));
    times_keys_len(dtype, dim).max(values)
}

#[allow(clippy::too_many_arguments)]
fn one_block<T: Element>(
    p: &AttentionParams,
    q: Heads<T>,
    k: Heads<T>,
    v: Heads<T>,
    segments: Segments,
    head: usize,
    block: QueryBlock,
    out: Shared<T>,
    lse: Shared<f32>,
    mut scratch: &mut [f32],
) {
    let (dim, padded) = (p.head_dim, block.padded);
    let kv_head = head / (p.heads / p.kv_heads);
    let out_t = carve(&mut scratch, dim * padded); // [D, padded]
    let scores = carve(&mut scratch, KEYS * padded); // [KEYS, padded]
    let product = carve(&mut scratch, product_len(T::DTYPE, dim));
    let packed_probs = carve(
        &mut scratch,
        pack_or_read_len(T::DTYPE, DType::F32, KEYS, padded),
    );
    let packed = carve(&mut scratch, pack_len(T::DTYPE, dim, block.rows));
    let queries = q.rows(block.b, block.first, head);
    let q_t = pack::<T, T>(queries.t(), dim, block.rows, packed);
    out_t.fill(0.0);
    let mut max = [f32::NEG_INFINITY; QUERIES];
    let mut sum = [0.0; QUERIES];
    let (max, sum) = (&mut max[..padded], &mut sum[..padded]);

    for keys in block.key_blocks(p) {
        let seen = seen(p, segments, &block, keys);
        if seen == Seen::Nothing {
            continue;
        }
        let scores = &mut scores[..keys.1 * padded];
        times_keys(k, kv_head, dim, &block, keys, q_t, scores, product);
        scale_piece(scores, p.scale);
        if seen == Seen::Some {
            mask(p, segments, &block, keys, scores);
        }
        online_softmax(scores, max, sum, out_t);
        // out^T [D, padded] += v^T [D, keys] . p^T [keys, padded]
        let values = v.rows(block.b, keys.0, kv_head).t();
        let probs = Matrix::rows(&*scores, padded);
        let probs = pack_or_read::<T, f32>(probs, keys.1, padded, packed_probs);
        let to = Target::rows(out_t, padded);
        let shape = (dim, keys.1, padded);
        // SAFETY: `out_t` is this task's own.
        unsafe { multiply::<T, T, f32>(shape, values, probs, to, Write::Accumulate, product) };
    }

    let lse_at = (block.b * p.heads + head) * p.queries + block.first;
    // SAFETY: tasks have queries of a head of their own.
    let lse = unsafe { lse.slice(lse_at, block.rows) };
    for i in 0..block.rows {
        let row = ((block.b * p.queries + block.first + i) * p.heads + head) * dim;
        // SAFETY: as above.
        let out = unsafe { out.slice(row, dim) };
        let sees_none = sum[i] == 0.0;
        lse[i] = if sees_none {
            f32::NEG_INFINITY
        } else {
            max[i] + sum[i].ln()
        };
        let inv = if sees_none { 0.0 } else { 1.0 / sum[i] };
        for d in 0..dim {
            out[d] = T::round(out_t[d * padded + i] * inv);
        }
    }
}

vectorize! {
    /// Turns a block of scores into probabilities relative to the new maximum, and rescales what went before.
    fn online_softmax(scores: &mut [f32], max: &mut [f32], sum: &mut [f32], out_t: &mut [f32]) {
        let padded = max.len();
        let mut correction = [0.0; QUERIES];
        let mut shift = [0.0; QUERIES];
        let (correction, shift) = (&mut correction[..padded], &mut shift[..padded]);
        correction.copy_from_slice(max);
        for scores in scores.chunks_exact(padded) {
            for (max, score) in max.iter_mut().zip(scores) {
                *max = if *score > *max { *score } else { *max };
            }
        }
        for i in 0..padded {
            // A query that has seen nothing yet: any finite shift gives exp(-inf) = 0.
            shift[i] = if max[i] == f32::NEG_INFINITY { 0.0 } else { max[i] };
            correction[i] = simd::exp::<F>(correction[i] - shift[i]);
            sum[i] *= correction[i];
        }
        for scores in scores.chunks_exact_mut(padded) {
            for ((score, shift), sum) in scores.iter_mut().zip(shift.iter()).zip(sum.iter_mut()) {
                *score = simd::exp::<F>(*score - shift);
                *sum += *score;
            }
        }
        for out in out_t.chunks_exact_mut(padded) {
            for (out, correction) in out.iter_mut().zip(correction.iter()) {
                *out *= correction;
            }
        }
    }
}
