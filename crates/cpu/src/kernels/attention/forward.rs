//! Forward: one task per (batch, head, block of queries).
//!
//! Per block of keys, with the running maximum `m` and sum `l` of each query:
//! `m' = max(m, max s)`, `p = exp(s - m')`, `l' = l exp(m - m') + sum p`, `o' = o exp(m - m') + p . v`; at the end
//! `out = o / l` and `lse = m + ln l`.

use super::{KEYS, QUERIES, QueryBlock, Seen, Segments, mask, seen, times_keys, work};
use crate::check::Heads;
use crate::kernels::matmul::{Matrix, Target, gemm};
use crate::par::{self, Shared};
use crate::simd::{self, vectorize};
use crate::{AttentionParams, Write};

pub(crate) fn forward(
    p: &AttentionParams,
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let blocks = QueryBlock::count(p);
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    par::for_each_with(tasks(p), work(p), scratch_per_thread(p), |task, scratch| {
        let (index, head) = (task % blocks, task / blocks % p.heads);
        let block = QueryBlock::new(p, task / blocks / p.heads, index);
        one_block(p, q, k, v, segments, head, block, out, lse, scratch);
    });
}

fn tasks(p: &AttentionParams) -> usize {
    p.batch * p.heads * QueryBlock::count(p)
}

fn scratch_per_thread(p: &AttentionParams) -> usize {
    (2 * p.head_dim + KEYS) * QUERIES
}

/// Elements of scratch that [`forward`] takes.
pub(crate) fn forward_scratch(p: &AttentionParams) -> usize {
    par::scratch_len(tasks(p), work(p), scratch_per_thread(p))
}

#[allow(clippy::too_many_arguments)]
fn one_block(
    p: &AttentionParams,
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments,
    head: usize,
    block: QueryBlock,
    out: Shared<f32>,
    lse: Shared<f32>,
    scratch: &mut [f32],
) {
    let (dim, padded) = (p.head_dim, block.padded);
    let kv_head = head / (p.heads / p.kv_heads);
    let (q_t, rest) = scratch.split_at_mut(dim * padded);
    let (out_t, scores) = rest.split_at_mut(dim * padded); // [D, padded], [KEYS, padded]
    block.transpose(q, head, dim, p.scale, q_t);
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
        times_keys(k, kv_head, dim, &block, keys, q_t, scores);
        if seen == Seen::Some {
            mask(p, segments, &block, keys, scores);
        }
        online_softmax(scores, max, sum, out_t);
        // out^T [D, padded] += v^T [D, keys] . p^T [keys, padded]
        let values = v.from(block.b, keys.0, kv_head);
        let values = Matrix {
            data: values,
            row_stride: 1,
            col_stride: v.row_stride(),
        };
        let probs = Matrix {
            data: scores,
            row_stride: padded,
            col_stride: 1,
        };
        let to = Target {
            out: Shared::new(out_t),
            at: 0,
            row_stride: padded,
        };
        // SAFETY: `out_t` is this task's own.
        unsafe { gemm((dim, keys.1, padded), values, probs, to, Write::Accumulate) };
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
            out[d] = out_t[d * padded + i] * inv;
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
            correction[i] = simd::exp(correction[i] - shift[i]);
            sum[i] *= correction[i];
        }
        for scores in scores.chunks_exact_mut(padded) {
            for ((score, shift), sum) in scores.iter_mut().zip(shift.iter()).zip(sum.iter_mut()) {
                *score = simd::exp(*score - shift);
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
