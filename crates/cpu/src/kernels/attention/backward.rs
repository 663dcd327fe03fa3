//! Backward: one task per (batch, key/value head), which owns the gradients of its keys, values and queries.
//!
//! With `p = exp(s - lse)`, `dp = dout . v^T` and `delta = sum_d dout out`:
//! `ds = p (dp - delta) scale`, `dv = p^T . dout`, `dk = ds^T . q`, `dq = ds . k`.

use candle_core::DType;

use super::{
    KEYS, QUERIES, QueryBlock, Seen, Segments, mask, seen, times_keys, times_keys_len, work,
};
use crate::check::Heads;
use crate::element::Element;
use crate::kernels::elementwise::scale_piece;
use crate::kernels::matmul::{
    Matrix, Target, multiply, multiply_len, pack, pack_len, pack_or_read, pack_or_read_len, store,
};
use crate::par::{self, Shared};
use crate::pool::carve;
use crate::simd::{self, vectorize};
use crate::{AttentionParams, Write};

/// Operands and results of the forward pass; `out` and `lse` dense.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a, T> {
    pub q: Heads<'a, T>,
    pub k: Heads<'a, T>,
    pub v: Heads<'a, T>,
    pub segments: Segments<'a>,
    pub out: &'a [T],
    pub lse: &'a [f32],
}

pub(crate) fn backward<T: Element>(
    p: &AttentionParams,
    saved: Saved<T>,
    dout: &[T],
    dq: &mut [T],
    dk: &mut [T],
    dv: &mut [T],
) {
    let q_dims = [p.batch, p.queries, p.heads, p.head_dim];
    let dout = Heads::dense(dout, q_dims);
    let [dq, dk, dv] = [dq, dk, dv].map(Shared::new);
    let kv_len = p.keys * p.head_dim;
    let len = scratch_per_thread(T::DTYPE, p);
    par::for_each_with(tasks(p), work(p), len, &|task, mut scratch| {
        let (b, kv_head) = (task / p.kv_heads, task % p.kv_heads);
        // Summed in f32, over the blocks of queries of all heads of the group.
        let dk_sum = carve(&mut scratch, kv_len); // [keys, D]
        let dv_sum = carve(&mut scratch, kv_len);
        dk_sum.fill(0.0);
        dv_sum.fill(0.0);
        let group = p.heads / p.kv_heads;
        for head in kv_head * group..(kv_head + 1) * group {
            for index in 0..QueryBlock::count(p) {
                let block = QueryBlock::new(p, b, index);
                let mut task = Task {
                    p,
                    saved,
                    dout,
                    head,
                    kv_head,
                    block,
                    dk: &mut *dk_sum,
                    dv: &mut *dv_sum,
                };
                task.run(dq, scratch);
            }
        }
        for (sum, out) in [(dk_sum, dk), (dv_sum, dv)] {
            for (j, row) in sum.chunks_exact(p.head_dim).enumerate() {
                let at = ((b * p.keys + j) * p.kv_heads + kv_head) * p.head_dim;
                // SAFETY: tasks have a key/value head of a batch of their own.
                store(row, unsafe { out.slice(at, p.head_dim) }, Write::Assign);
            }
        }
    });
}

fn tasks(p: &AttentionParams) -> usize {
    p.batch * p.kv_heads
}

fn scratch_per_thread(dtype: DType, p: &AttentionParams) -> usize {
    let dim = p.head_dim;
    let both = pack_len(dtype, dim, QUERIES) + pack_or_read_len(dtype, dtype, QUERIES, dim);
    2 * p.keys * dim
        + 2 * KEYS * QUERIES
        + QUERIES * dim
        + 2 * both
        + pack_or_read_len(dtype, dtype, KEYS, dim)
        + product_len(dtype, dim)
}

/// Elements of scratch that [`backward`] takes for operands of this type.
pub(crate) fn backward_scratch(dtype: DType, p: &AttentionParams) -> usize {
    par::scratch_len(tasks(p), work(p), scratch_per_thread(dtype, p))
}

/// Scratch of the products.
fn product_len(dtype: DType, dim: usize) -> usize {
    let of_scores =
        |col_stride, shape| multiply_len(dtype, DType::F32, DType::F32, col_stride, shape);
    times_keys_len(dtype, dim)
        .max(of_scores(1, (KEYS, QUERIES, dim)))
        .max(of_scores(QUERIES, (QUERIES, KEYS, dim)))
}

/// One block of queries of one head.
struct Task<'a, T> {
    p: &'a AttentionParams,
    saved: Saved<'a, T>,
    dout: Heads<'a, T>,
    head: usize,
    kv_head: usize,
    block: QueryBlock,
    /// Sums of the key/value head's gradients, `[keys, D]`.
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl<'a, T: Element> Task<'a, T> {
    /// Adds to the gradients of keys and values, and writes those of the block's queries.
    fn run(&mut self, dq_out: Shared<T>, mut scratch: &mut [f32]) {
        let &mut Self {
            p,
            saved,
            dout,
            head,
            kv_head,
            block,
            ..
        } = self;
        let Saved { q, k, v, .. } = saved;
        let (dim, padded, rows) = (p.head_dim, block.padded, block.rows);
        let probs = carve(&mut scratch, KEYS * padded); // [KEYS, padded]
        let dprobs = carve(&mut scratch, KEYS * padded);
        let dq = carve(&mut scratch, rows * dim); // [rows, D]
        let packed_keys = carve(
            &mut scratch,
            pack_or_read_len(T::DTYPE, T::DTYPE, KEYS, dim),
        );
        let product = carve(&mut scratch, product_len(T::DTYPE, dim));
        // The block's queries and output gradients, as the products by keys and by queries take them.
        let mut pack_both = |x: Heads<'a, T>| {
            let x = x.rows(block.b, block.first, head);
            let by_keys = carve(&mut scratch, pack_len(T::DTYPE, dim, rows));
            let len = pack_or_read_len(T::DTYPE, T::DTYPE, rows, dim);
            let by_queries = carve(&mut scratch, len);
            (
                pack::<T, T>(x.t(), dim, rows, by_keys),
                pack_or_read::<T, T>(x, rows, dim, by_queries),
            )
        };
        let (q_t, queries) = pack_both(q);
        let (dout_t, dout_rows) = pack_both(dout);

        let row_at = |i: usize| ((block.b * p.queries + block.first + i) * p.heads + head) * dim;
        let lse = &saved.lse[(block.b * p.heads + head) * p.queries + block.first..][..rows];
        let mut shift = [f32::INFINITY; QUERIES]; // a query that sees nothing, and the padding: exp(-inf) = 0
        let mut delta = [0.0; QUERIES];
        let (shift, delta) = (&mut shift[..padded], &mut delta[..padded]);
        for i in 0..rows {
            if lse[i] != f32::NEG_INFINITY {
                shift[i] = lse[i];
            }
            let dout = &dout.from(block.b, block.first + i, head)[..dim];
            delta[i] = dot(dout, &saved.out[row_at(i)..][..dim]);
        }

        dq.fill(0.0);
        for keys in block.key_blocks(p) {
            let seen = seen(p, saved.segments, &block, keys);
            if seen == Seen::Nothing {
                continue;
            }
            let probs = &mut probs[..keys.1 * padded];
            let dscores = &mut dprobs[..keys.1 * padded];
            times_keys(k, kv_head, dim, &block, keys, q_t, probs, product);
            times_keys(v, kv_head, dim, &block, keys, dout_t, dscores, product);
            scale_piece(probs, p.scale);
            if seen == Seen::Some {
                mask(p, saved.segments, &block, keys, probs);
            }
            score_gradients(probs, dscores, shift, delta, p.scale);
            let [probs, dscores] = [&*probs, &*dscores].map(|x| Matrix::rows(x, padded));
            let kv_range = keys.0 * dim..(keys.0 + keys.1) * dim;
            let to_dk = Target::rows(&mut self.dk[kv_range.clone()], dim);
            let to_dv = Target::rows(&mut self.dv[kv_range], dim);
            let to_dq = Target::rows(dq, dim);
            let key_rows = k.rows(block.b, keys.0, kv_head);
            let key_rows = pack_or_read::<T, T>(key_rows, keys.1, dim, packed_keys);
            let (by_keys, by_queries) = ((keys.1, rows, dim), (rows, keys.1, dim));
            let add = Write::Accumulate;
            // SAFETY: all three are this task's own.
            unsafe {
                multiply::<T, f32, f32>(by_keys, probs, dout_rows, to_dv, add, product);
                multiply::<T, f32, f32>(by_keys, dscores, queries, to_dk, add, product);
                multiply::<T, f32, f32>(by_queries, dscores.t(), key_rows, to_dq, add, product);
            }
        }
        for (i, row) in dq.chunks_exact(dim).enumerate() {
            // SAFETY: this task owns the gradients of the query heads that read its key/value head.
            store(row, unsafe { dq_out.slice(row_at(i), dim) }, Write::Assign);
        }
    }
}

vectorize! {
    fn dot<T: Element>(a: &[T], b: &[T]) -> f32 {
        simd::dot::<F, _, _>(a, b)
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
                *score = simd::exp::<F>(*score - shift);
                *dprob = *score * (*dprob - delta) * scale;
            }
        }
    }
}
