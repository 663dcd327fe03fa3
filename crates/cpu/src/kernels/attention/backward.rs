//! Backward: one task per (batch, key/value head), which owns the gradients of its keys, values and queries.
//!
//! With `p = exp(s - lse)`, `dp = dout . v^T` and `delta = sum_d dout out`:
//! `ds = p (dp - delta) scale`, `dv = p^T . dout`, `dk = ds^T . q`, `dq = ds . k`.

use super::{KEYS, QUERIES, QueryBlock, Seen, Segments, mask, seen, times_keys, work};
use crate::check::Heads;
use crate::kernels::matmul::{Matrix, Target, gemm};
use crate::par::{self, Shared};
use crate::simd::{self, vectorize};
use crate::{AttentionParams, Write};

/// Operands and results of the forward pass; `out` and `lse` dense.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub q: Heads<'a>,
    pub k: Heads<'a>,
    pub v: Heads<'a>,
    pub segments: Segments<'a>,
    pub out: &'a [f32],
    pub lse: &'a [f32],
}

fn tasks(p: &AttentionParams) -> usize {
    p.batch * p.kv_heads
}

fn scratch_per_thread(p: &AttentionParams) -> usize {
    2 * (p.head_dim + KEYS) * QUERIES
}

/// Elements of scratch that [`backward`] takes.
pub(crate) fn backward_scratch(p: &AttentionParams) -> usize {
    par::scratch_len(tasks(p), work(p), scratch_per_thread(p))
}

pub(crate) fn backward(
    p: &AttentionParams,
    saved: Saved,
    dout: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let q_dims = [p.batch, p.queries, p.heads, p.head_dim];
    let grads = Gradients {
        dout: Heads::dense(dout, q_dims),
        dq: Shared::new(dq),
        dk: Shared::new(dk),
        dv: Shared::new(dv),
    };
    par::for_each_with(tasks(p), work(p), scratch_per_thread(p), |task, scratch| {
        let (b, kv_head) = (task / p.kv_heads, task % p.kv_heads);
        for j in 0..p.keys {
            let at = ((b * p.keys + j) * p.kv_heads + kv_head) * p.head_dim;
            // SAFETY: tasks have a key/value head of a batch of their own.
            unsafe {
                grads.dk.slice(at, p.head_dim).fill(0.0);
                grads.dv.slice(at, p.head_dim).fill(0.0);
            }
        }
        let group = p.heads / p.kv_heads;
        for head in kv_head * group..(kv_head + 1) * group {
            for index in 0..QueryBlock::count(p) {
                let block = QueryBlock::new(p, b, index);
                one_block(p, &saved, &grads, head, kv_head, block, scratch);
            }
        }
    });
}

struct Gradients<'a> {
    dout: Heads<'a>,
    dq: Shared<f32>,
    dk: Shared<f32>,
    dv: Shared<f32>,
}

/// Adds what one block of queries of one head contributes.
fn one_block(
    p: &AttentionParams,
    saved: &Saved,
    grads: &Gradients,
    head: usize,
    kv_head: usize,
    block: QueryBlock,
    scratch: &mut [f32],
) {
    let &Saved {
        q,
        k,
        v,
        segments,
        out,
        lse,
    } = saved;
    let (dim, padded) = (p.head_dim, block.padded);
    let (q_t, rest) = scratch.split_at_mut(dim * padded);
    let (dout_t, rest) = rest.split_at_mut(dim * padded); // [D, padded]
    let (probs, dprobs) = rest.split_at_mut(KEYS * padded); // [KEYS, padded]
    block.transpose(q, head, dim, p.scale, q_t);
    block.transpose(grads.dout, head, dim, 1.0, dout_t);

    let row_at = |i: usize| ((block.b * p.queries + block.first + i) * p.heads + head) * dim;
    let lse = &lse[(block.b * p.heads + head) * p.queries + block.first..][..block.rows];
    let mut shift = [f32::INFINITY; QUERIES]; // a query that sees nothing, and the padding: exp(-inf) = 0
    let mut delta = [0.0; QUERIES];
    let (shift, delta) = (&mut shift[..padded], &mut delta[..padded]);
    for i in 0..block.rows {
        if lse[i] != f32::NEG_INFINITY {
            shift[i] = lse[i];
        }
        delta[i] = dot(
            &grads.dout.from(block.b, block.first + i, head)[..dim],
            &out[row_at(i)..][..dim],
        );
    }

    // Rows of one head in tensors [B, T, heads, D] lie this far apart.
    let (q_stride, kv_stride) = (p.heads * dim, p.kv_heads * dim);
    let dout = grads.dout.from(block.b, block.first, head);
    let dout = Matrix {
        data: dout,
        row_stride: q_stride,
        col_stride: 1,
    };
    let queries = q.from(block.b, block.first, head);
    let queries = Matrix {
        data: queries,
        row_stride: q.row_stride(),
        col_stride: 1,
    };
    let to_dq = Target {
        out: grads.dq,
        at: row_at(0),
        row_stride: q_stride,
    };
    let mut write_dq = Write::Assign;

    for keys in block.key_blocks(p) {
        let seen = seen(p, segments, &block, keys);
        if seen == Seen::Nothing {
            continue;
        }
        let probs = &mut probs[..keys.1 * padded];
        let dscores = &mut dprobs[..keys.1 * padded];
        times_keys(k, kv_head, dim, &block, keys, q_t, probs);
        times_keys(v, kv_head, dim, &block, keys, dout_t, dscores);
        if seen == Seen::Some {
            mask(p, segments, &block, keys, probs);
        }
        score_gradients(probs, dscores, shift, delta, p.scale);
        let kv_at = ((block.b * p.keys + keys.0) * p.kv_heads + kv_head) * dim;
        let to_dk = Target {
            out: grads.dk,
            at: kv_at,
            row_stride: kv_stride,
        };
        let to_dv = Target {
            out: grads.dv,
            ..to_dk
        };
        let probs_t = Matrix {
            data: probs,
            row_stride: padded,
            col_stride: 1,
        };
        let dscores_t = Matrix {
            data: dscores,
            ..probs_t
        };
        let dscores = Matrix {
            row_stride: 1,
            col_stride: padded,
            ..dscores_t
        };
        let keys_rows = k.from(block.b, keys.0, kv_head);
        let keys_rows = Matrix {
            data: keys_rows,
            row_stride: k.row_stride(),
            col_stride: 1,
        };
        // SAFETY: this task owns the gradients of its key/value head and of the query heads that read it.
        unsafe {
            let kv_shape = (keys.1, block.rows, dim);
            gemm(kv_shape, probs_t, dout, to_dv, Write::Accumulate);
            gemm(kv_shape, dscores_t, queries, to_dk, Write::Accumulate);
            gemm(
                (block.rows, keys.1, dim),
                dscores,
                keys_rows,
                to_dq,
                write_dq,
            );
        }
        write_dq = Write::Accumulate;
    }
    if write_dq == Write::Assign {
        for i in 0..block.rows {
            // SAFETY: as above.
            unsafe { grads.dq.slice(row_at(i), dim) }.fill(0.0);
        }
    }
}

vectorize! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        simd::dot(a, b)
    }
}

vectorize! {
    /// Scores become probabilities, and the gradients of probabilities become those of scores.
    fn score_gradients(
        scores: &mut [f32],
        dprobs: &mut [f32],
        shift: &[f32],
        delta: &[f32],
        scale: f32,
    ) {
        let padded = shift.len();
        let rows = scores.chunks_exact_mut(padded).zip(dprobs.chunks_exact_mut(padded));
        for (scores, dprobs) in rows {
            let queries = shift.iter().zip(delta);
            for ((score, dprob), (shift, delta)) in scores.iter_mut().zip(dprobs).zip(queries) {
                *score = simd::exp(*score - shift);
                *dprob = *score * (*dprob - delta) * scale;
            }
        }
    }
}
