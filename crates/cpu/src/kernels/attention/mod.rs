//! Scaled-dot-product attention, block by block with an online softmax: scores are never held whole.
//!
//! Formula and masking: [`AttentionParams`]. Layouts: `q`, `k`, `v` `[B, T, heads, D]` views with contiguous last dim,
//! all f32, bf16 or f16; `out`, `dout`, `dq`, `dk`, `dv` dense alike; `lse` `[B, H, Tq]`, f32.
//!
//! Scores are held transposed, `[keys, queries]` of one block: the products with keys and values then read their operands
//! where they are, and maxima and sums run along lanes (one query each) without a horizontal step. Only the
//! block's queries (and output gradients) are packed, once. Blocks that a mask hides wholly are skipped, and blocks
//! that it leaves whole are not masked.
//!
//! Numeric notes: scores, softmax and sums are f32; the running maximum is subtracted before exp. With 16-bit operands
//! probabilities and gradients of scores are rounded to their type for the products they enter. The backward pass
//! recomputes probabilities from `lse` and uses `delta = dout . out`. Fixed blocks, each output summed by one
//! task in order, or the sums of several tasks in order ([`cut`]), and rounded once.
//! Reference: [`crate::reference::attention`].
//! Source: Milakov and Gimelshein 2018, arXiv:1805.02867 (online softmax); Dao 2023, arXiv:2307.08691 (blocks).

mod backward;
mod cut;
mod forward;

pub(crate) use backward::{Saved, backward, backward_scratch};
pub(crate) use forward::{forward, forward_scratch};

use candle_core::DType;

use super::matmul::{Packed, Target, multiply, multiply_len};
use crate::check::Heads;
use crate::element::Element;
use crate::par::product_work;
use crate::simd::{LANES, vectorize};
use crate::{AttentionParams, Write};

/// Queries of a block: the lanes of the softmax.
const QUERIES: usize = 64;
/// Keys of a block.
const KEYS: usize = 64;

/// Segment ids of queries `[B, Tq]` and keys `[B, Tk]`.
pub(crate) type Segments<'a> = Option<(&'a [u32], &'a [u32])>;

/// Queries `first..first + rows` of batch `b`.
#[derive(Clone, Copy)]
struct QueryBlock {
    b: usize,
    first: usize,
    rows: usize,
    /// `rows` rounded up to whole vectors.
    padded: usize,
}

impl QueryBlock {
    fn count(p: &AttentionParams) -> usize {
        p.queries.div_ceil(QUERIES)
    }

    fn new(p: &AttentionParams, b: usize, index: usize) -> Self {
        let first = index * QUERIES;
        let rows = QUERIES.min(p.queries - first);
        Self {
            b,
            first,
            rows,
            padded: rows.next_multiple_of(LANES),
        }
    }

    /// The keys' positions minus a query's own when counted from the first query.
    fn offset(p: &AttentionParams) -> isize {
        p.keys as isize - p.queries as isize
    }

    /// The keys that some query of this block may see by position, from the beginning of a block of keys on.
    fn key_range(&self, p: &AttentionParams) -> std::ops::Range<usize> {
        let first_position = self.first as isize + QueryBlock::offset(p);
        let last_position = first_position + self.rows as isize - 1;
        let end = if p.causal {
            (last_position + 1).clamp(0, p.keys as isize)
        } else {
            p.keys as isize
        };
        let start = match p.window {
            Some(window) => (first_position + 1).saturating_sub_unsigned(window).max(0),
            None => 0,
        };
        start as usize / KEYS * KEYS..end as usize
    }

    /// The blocks of these, as (first key, keys).
    fn key_blocks(&self, p: &AttentionParams) -> impl Iterator<Item = (usize, usize)> + use<> {
        let keys = p.keys;
        self.key_range(p)
            .step_by(KEYS)
            .map(move |first| (first, KEYS.min(keys - first)))
    }
}

/// An upper bound of the work of one product, for [`crate::par::for_each`].
fn work(p: &AttentionParams) -> usize {
    product_work(&[p.batch, p.heads, p.queries, p.keys, p.head_dim])
}

/// How much of a block of scores is seen.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    Nothing,
    Some,
    All,
}

fn seen(
    p: &AttentionParams,
    segments: Segments,
    q: &QueryBlock,
    (first_key, keys): (usize, usize),
) -> Seen {
    let nearest = q.first as isize + QueryBlock::offset(p) - (first_key + keys - 1) as isize;
    let farthest = nearest + (q.rows + keys - 2) as isize;
    let window = p.window.map_or(isize::MAX, |window| {
        isize::try_from(window).unwrap_or(isize::MAX)
    });
    if (p.causal && farthest < 0) || nearest >= window {
        return Seen::Nothing;
    }
    let whole = (!p.causal || nearest >= 0) && farthest < window;
    let Some((queries, key_segments)) = block_segments(p, segments, q, (first_key, keys)) else {
        return if whole { Seen::All } else { Seen::Some };
    };
    let range = |ids: &[u32]| {
        ids.iter().fold((u32::MAX, 0), |(low, high), id| {
            (low.min(*id), high.max(*id))
        })
    };
    let ((q_low, q_high), (k_low, k_high)) = (range(queries), range(key_segments));
    if q_high < k_low || k_high < q_low {
        Seen::Nothing
    } else if whole && q_low == q_high && (k_low, k_high) == (q_low, q_high) {
        Seen::All
    } else {
        Seen::Some
    }
}

fn block_segments<'a>(
    p: &AttentionParams,
    segments: Segments<'a>,
    q: &QueryBlock,
    (first_key, keys): (usize, usize),
) -> Segments<'a> {
    let (queries, key_segments) = segments?;
    Some((
        &queries[q.b * p.queries + q.first..][..q.rows],
        &key_segments[q.b * p.keys + first_key..][..keys],
    ))
}

/// `x` of the keys `[keys, D]` times a transposed block `[D, padded]`: a block of scores, or their gradients.
#[allow(clippy::too_many_arguments)]
fn times_keys<T: Element>(
    x: Heads<T>,
    kv_head: usize,
    dim: usize,
    q: &QueryBlock,
    (first_key, keys): (usize, usize),
    transposed: Packed,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let x = x.rows(q.b, first_key, kv_head);
    let to = Target::rows(out, q.padded);
    // SAFETY: `out` is borrowed exclusively.
    unsafe {
        multiply::<T, T, f32>(
            (keys, dim, q.padded),
            x,
            transposed,
            to,
            Write::Assign,
            scratch,
        )
    };
}

/// Scratch of [`times_keys`].
fn times_keys_len(dtype: DType, dim: usize) -> usize {
    multiply_len(dtype, dtype, DType::F32, 1, (KEYS, dim, QUERIES))
}

/// Sets the scores `[keys, padded]` that are not seen to minus infinity.
fn mask(
    p: &AttentionParams,
    segments: Segments,
    q: &QueryBlock,
    keys: (usize, usize),
    scores: &mut [f32],
) {
    let window = p
        .window
        .map_or(i32::MAX, |window| i32::try_from(window).unwrap_or(i32::MAX));
    let allowed = (if p.causal { 0 } else { i32::MIN }, window);
    let segments = block_segments(p, segments, q, keys);
    for (j, scores) in scores.chunks_exact_mut(q.padded).enumerate() {
        let distance = (q.first as isize + QueryBlock::offset(p) - (keys.0 + j) as isize) as i32;
        mask_distances(scores, distance, allowed);
        if let Some((queries, keys)) = segments {
            mask_segments(scores, queries, keys[j]);
        }
    }
}

vectorize! {
    /// One key; query 0 is `distance` after it, query `i` is `i` further on; `allowed` excludes its end.
    fn mask_distances(scores: &mut [f32], distance: i32, allowed: (i32, i32)) {
        for (i, score) in scores.iter_mut().enumerate() {
            let distance = distance + i as i32;
            let sees = distance >= allowed.0 && distance < allowed.1;
            *score = if sees { *score } else { f32::NEG_INFINITY };
        }
    }
}

vectorize! {
    fn mask_segments(scores: &mut [f32], queries: &[u32], key: u32) {
        for (score, query) in scores.iter_mut().zip(queries) {
            *score = if *query == key { *score } else { f32::NEG_INFINITY };
        }
    }
}
