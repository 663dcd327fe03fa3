//! Backward: tasks of heads and ranges of keys ([`Cut`]), which own the gradients of their keys, values and queries or have
//! partial sums of them, added afterwards.
//!
//! With `p = exp(s - lse)`, `dp = dout . v^T` and `delta = sum_d dout out`:
//! `ds = p (dp - delta) scale`, `dv = p^T . dout`, `dk = ds^T . q`, `dq = ds . k`.

use std::ops::Range;

use candle_core::DType;

use super::cut::{Cut, KeyRange};
use super::{
    KEYS, QUERIES, QueryBlock, Seen, Segments, mask, seen, times_keys, times_keys_len, work,
};
use crate::check::Heads;
use crate::element::Element;
use crate::kernels::elementwise::scale_piece;
use crate::kernels::matmul::{
    Matrix, Target, multiply, multiply_len, pack, pack_len, pack_or_read, pack_or_read_len, store,
};
use crate::kernels::reduce::add_rows;
use crate::par::{self, Shared};
use crate::pool::{carve, scratch};
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
    let cut = Cut::new(p);
    let [of_keys, of_queries] = partial_lens(p, &cut);
    let (mut of_keys, mut of_queries) = (scratch(of_keys), scratch(of_queries));
    let to = Outputs {
        dq: Shared::new(dq),
        dk: Shared::new(dk),
        dv: Shared::new(dv),
        of_keys: Shared::new(&mut of_keys),
        of_queries: Shared::new(&mut of_queries),
    };
    let len = scratch_per_thread(T::DTYPE, p, &cut);
    par::for_each_with(cut.tasks(p), work(p), len, &|task, scratch| {
        let (range, task) = (task % cut.ranges.len(), task / cut.ranges.len());
        let in_batch = p.heads / cut.heads;
        let (b, first_head) = (task / in_batch, task % in_batch * cut.heads);
        let range = &cut.ranges[range];
        task_of_keys(p, saved, dout, &cut, range, b, first_head, to, scratch);
    });
    if cut.shares_keys(p) {
        add_heads(p, &of_keys, to);
    }
    if cut.shares_queries() {
        add_ranges(p, &cut, &of_queries, to.dq);
    }
}

/// Where gradients go, and what tasks have of those that they share.
#[derive(Clone, Copy)]
struct Outputs<T> {
    dq: Shared<T>,
    dk: Shared<T>,
    dv: Shared<T>,
    /// Of keys, then of values: `[2, B, H, keys, D]`.
    of_keys: Shared<f32>,
    /// `[B, H, rows of all ranges, D]`.
    of_queries: Shared<f32>,
}

/// Elements of the gradients that tasks share.
fn partial_lens(p: &AttentionParams, cut: &Cut) -> [usize; 2] {
    let of_row = p.batch * p.heads * p.head_dim;
    let of_keys = if cut.shares_keys(p) { 2 * p.keys } else { 0 };
    let of_queries = if cut.shares_queries() {
        cut.query_rows()
    } else {
        0
    };
    [of_keys, of_queries].map(|rows| rows * of_row)
}

/// The heads of a task with the keys of its range.
#[allow(clippy::too_many_arguments)]
fn task_of_keys<T: Element>(
    p: &AttentionParams,
    saved: Saved<T>,
    dout: Heads<T>,
    cut: &Cut,
    range: &KeyRange,
    b: usize,
    first_head: usize,
    to: Outputs<T>,
    mut scratch: &mut [f32],
) {
    let dim = p.head_dim;
    let kv_head = first_head / (p.heads / p.kv_heads);
    let kv_len = range.keys.len() * dim;
    // Summed in f32, over the blocks of queries of all heads of the task.
    let [dk_sum, dv_sum] = if cut.shares_keys(p) {
        let of_head = ((b * p.heads + first_head) * p.keys + range.keys.start) * dim;
        let all = p.batch * p.heads * p.keys * dim;
        // SAFETY: tasks have keys of a query head of their own.
        [0, all].map(|at| unsafe { to.of_keys.slice(at + of_head, kv_len) })
    } else {
        [(); 2].map(|()| carve(&mut scratch, kv_len)) // [keys, D]
    };
    dk_sum.fill(0.0);
    dv_sum.fill(0.0);
    for head in first_head..first_head + cut.heads {
        for index in range.blocks.clone() {
            let block = QueryBlock::new(p, b, index);
            let mut task = Task {
                p,
                saved,
                dout,
                head,
                kv_head,
                block,
                keys: range.keys.clone(),
                dk: &mut *dk_sum,
                dv: &mut *dv_sum,
            };
            let mut scratch = &mut *scratch;
            if cut.shares_queries() {
                let rows = (b * p.heads + head) * cut.query_rows() + range.row(index);
                // SAFETY: tasks have the rows of a range and a head of their own.
                let dq = unsafe { to.of_queries.slice(rows * dim, block.rows * dim) };
                task.run(dq, scratch);
                continue;
            }
            let dq = carve(&mut scratch, block.rows * dim);
            task.run(dq, scratch);
            for (i, row) in dq.chunks_exact(dim).enumerate() {
                let at = ((b * p.queries + block.first + i) * p.heads + head) * dim;
                // SAFETY: this task owns the gradients of its heads' queries.
                store(row, unsafe { to.dq.slice(at, dim) }, Write::Assign);
            }
        }
    }
    if cut.shares_keys(p) {
        return;
    }
    for (sum, out) in [(dk_sum, to.dk), (dv_sum, to.dv)] {
        for (key, row) in range.keys.clone().zip(sum.chunks_exact(dim)) {
            let at = ((b * p.keys + key) * p.kv_heads + kv_head) * dim;
            // SAFETY: tasks have keys of a key/value head of a batch of their own.
            store(row, unsafe { out.slice(at, dim) }, Write::Assign);
        }
    }
}

/// Keys and values whose partial gradients one task adds.
const ADDED_KEYS: usize = 16;

/// Tasks of [`add_heads`].
fn key_tasks(p: &AttentionParams) -> usize {
    p.batch * p.kv_heads * p.keys.div_ceil(ADDED_KEYS)
}

/// Tasks of [`add_ranges`].
fn query_tasks(p: &AttentionParams) -> usize {
    p.batch * p.heads * QueryBlock::count(p)
}

/// Adds the query heads' gradients of keys and values, in order.
fn add_heads<T: Element>(p: &AttentionParams, of_keys: &[f32], to: Outputs<T>) {
    let (dim, group) = (p.head_dim, p.heads / p.kv_heads);
    let blocks = p.keys.div_ceil(ADDED_KEYS);
    par::for_each_with(key_tasks(p), of_keys.len(), dim, &|task, sum| {
        let (keys, task) = (task % blocks * ADDED_KEYS, task / blocks);
        let (b, kv_head) = (task / p.kv_heads, task % p.kv_heads);
        let sum = &mut sum[..dim];
        let partials = of_keys.split_at(of_keys.len() / 2);
        for (partials, out) in [(partials.0, to.dk), (partials.1, to.dv)] {
            for key in keys..p.keys.min(keys + ADDED_KEYS) {
                let of_head = |head: usize| {
                    let row = (b * p.heads + kv_head * group + head) * p.keys + key;
                    &partials[row * dim..][..dim]
                };
                sum.copy_from_slice(of_head(0));
                (1..group).for_each(|head| add_rows(of_head(head), sum));
                let at = ((b * p.keys + key) * p.kv_heads + kv_head) * dim;
                // SAFETY: tasks have keys of a key/value head of their own.
                store(sum, unsafe { out.slice(at, dim) }, Write::Assign);
            }
        }
    });
}

/// Adds the ranges' gradients of queries, in order.
fn add_ranges<T: Element>(p: &AttentionParams, cut: &Cut, of_queries: &[f32], dq: Shared<T>) {
    let (dim, blocks) = (p.head_dim, QueryBlock::count(p));
    par::for_each_with(
        query_tasks(p),
        of_queries.len(),
        QUERIES * dim,
        &|task, sums| {
            let (index, head) = (task % blocks, task / blocks);
            let block = QueryBlock::new(p, head / p.heads, index);
            let sums = &mut sums[..block.rows * dim];
            sums.fill(0.0);
            for range in &cut.ranges {
                if range.blocks.contains(&index) {
                    let rows = head * cut.query_rows() + range.row(index);
                    add_rows(&of_queries[rows * dim..][..block.rows * dim], sums);
                }
            }
            for (i, row) in sums.chunks_exact(dim).enumerate() {
                let at = ((block.b * p.queries + block.first + i) * p.heads + head % p.heads) * dim;
                // SAFETY: tasks have queries of a head of their own.
                store(row, unsafe { dq.slice(at, dim) }, Write::Assign);
            }
        },
    );
}

fn scratch_per_thread(dtype: DType, p: &AttentionParams, cut: &Cut) -> usize {
    let dim = p.head_dim;
    let both = pack_len(dtype, dim, QUERIES) + pack_or_read_len(dtype, dtype, QUERIES, dim);
    let own_keys = if cut.shares_keys(p) {
        0
    } else {
        2 * cut.most_keys() * dim
    };
    own_keys
        + 2 * KEYS * QUERIES
        + QUERIES * dim
        + 2 * both
        + pack_or_read_len(dtype, dtype, KEYS, dim)
        + product_len(dtype, dim)
}

/// What [`backward`] takes from the pool for operands of this type: elements of the buffers held at once, at each of
/// its moments.
pub(crate) fn backward_scratch(dtype: DType, p: &AttentionParams) -> Vec<Vec<usize>> {
    let cut = Cut::new(p);
    let partials = partial_lens(p, &cut);
    let with_partials = |tasks, work, len| {
        let of_threads = par::scratch_len(tasks, work, len);
        partials.into_iter().chain([of_threads]).collect()
    };
    let of_tasks = scratch_per_thread(dtype, p, &cut);
    let mut moments = vec![with_partials(cut.tasks(p), work(p), of_tasks)];
    if cut.shares_keys(p) {
        moments.push(with_partials(key_tasks(p), partials[0], p.head_dim));
    }
    if cut.shares_queries() {
        moments.push(with_partials(
            query_tasks(p),
            partials[1],
            QUERIES * p.head_dim,
        ));
    }
    moments
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
    keys: Range<usize>,
    /// Sums of the gradients of these keys and their values, `[keys, D]`.
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl<'a, T: Element> Task<'a, T> {
    /// Adds to the gradients of keys and values, and writes those of the block's queries, `[rows, D]`.
    fn run(&mut self, dq: &mut [f32], mut scratch: &mut [f32]) {
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
        let first_key = self.keys.start;
        let own = block
            .key_blocks(p)
            .filter(|keys| self.keys.contains(&keys.0));
        for keys in own {
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
            let kv_range = (keys.0 - first_key) * dim..(keys.0 - first_key + keys.1) * dim;
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
