//! Cross-entropy of a linear head, logits made and used chunk by chunk.
//!
//! Formula: [`CrossEntropyParams`]; with `p = softmax(z)`, smoothing `s` and z-loss `w` the gradient of a valid row is
//! `dz[c] = p[c] (1 + 2 w lse) - s / V - (1 - s) [c = label]`.
//! Layouts: `hidden` `[rows, D]`, `weight` `[V, D]`, `labels` `[rows]`, all dense.
//!
//! A chunk of rows `R` goes through three phases, its logits held transposed, `[V, R]`: so all three products read their
//! operands in place, and max and sum run along lanes without a horizontal step.
//! 1. per block of the vocabulary: `logits = weight . hidden^T`, and each row's max and sum of exponentials in the block;
//!    then, over the blocks in order, each row's `lse` and loss;
//! 2. per block: logits become their gradients, `dweight += dlogits . hidden`;
//! 3. per tile: `dhidden = dlogits^T . weight`.
//!
//! Scratch: the logits of a chunk, up to 8 Mi (fewer than 128 rows only if the vocabulary exceeds 64 Ki).
//! Numeric notes: f32 with the max subtracted; the sum of losses in f64. Blocks and chunks depend on the shape alone.
//! Reference: [`crate::reference::linear_cross_entropy`].

use super::matmul::{Matrix, Target, copy, gemm, narrow_cols};
use crate::par::{self, Shared};
use crate::pool::{Scratch, scratch};
use crate::simd::{self, LANES, vectorize};
use crate::{CrossEntropyParams, Write};

/// Rows of the head that one task takes.
const BLOCK: usize = 128;
/// Most logits held at once.
const MAX_LOGITS: usize = 8 << 20;

/// Rows of hidden states per chunk.
fn chunk_rows(rows: usize, vocab: usize) -> usize {
    let most = (MAX_LOGITS / vocab.max(1) / 64 * 64).clamp(64, 1024);
    // Equal chunks of whole vectors.
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(LANES)
}

/// Returns (summed loss, valid rows, summed `lse^2`).
pub(crate) fn linear(
    params: &CrossEntropyParams,
    hidden: &[f32],
    weight: &[f32],
    labels: &[i64],
    dim: usize,
    mut dhidden: Option<&mut [f32]>,
    mut dweight: Option<&mut [f32]>,
) -> [f32; 3] {
    if let Some(dweight) = &mut dweight {
        super::elementwise::fill(dweight, 0.0);
    }
    if labels.is_empty() {
        return [0.0; 3];
    }
    let vocab = weight.len().checked_div(dim).unwrap_or(0);
    let most = chunk_rows(labels.len(), vocab);
    let mut totals = [0.0f64; 3];
    for first in (0..labels.len()).step_by(most) {
        let rows = most.min(labels.len() - first);
        let chunk = Chunk {
            params,
            hidden: &hidden[first * dim..][..rows * dim],
            weight,
            labels: &labels[first..][..rows],
            dim,
            vocab,
            padded: rows.next_multiple_of(LANES),
        };
        let (mut logits, stats) = chunk.logits();
        let lse = chunk.losses(&logits, &stats, &mut totals);
        if dhidden.is_some() || dweight.is_some() {
            chunk.logits_backward(&mut logits, &lse, dweight.as_deref_mut());
        }
        if let Some(dhidden) = &mut dhidden {
            chunk.hidden_backward(&logits, &mut dhidden[first * dim..][..rows * dim]);
        }
    }
    totals.map(|total| total as f32)
}

/// Blocks of the vocabulary.
fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

/// What [`linear`] takes from the pool: elements of the buffers held at once, at each moment that may be the greatest.
pub(crate) fn linear_scratch(
    rows: usize,
    vocab: usize,
    dim: usize,
    backward: bool,
) -> Vec<Vec<usize>> {
    if rows == 0 {
        return Vec::new();
    }
    let most = chunk_rows(rows, vocab);
    let last = (rows - 1) % most + 1;
    let chunks = [most.min(rows), last].map(|rows| rows.next_multiple_of(LANES));
    let moments = chunks.map(|padded| {
        let (logits, stats) = (vocab * padded, blocks(vocab) * 3 * padded);
        let factors = backward.then_some(2 * padded);
        let later = [logits, stats, padded].into_iter().chain(factors);
        [vec![dim * padded, logits, stats], later.collect()]
    });
    moments.into_iter().flatten().collect()
}

struct Chunk<'a> {
    params: &'a CrossEntropyParams,
    hidden: &'a [f32],
    weight: &'a [f32],
    labels: &'a [i64],
    dim: usize,
    vocab: usize,
    /// Rows of the chunk rounded up to whole vectors: the row length of the transposed logits.
    padded: usize,
}

impl Chunk<'_> {
    fn work(&self) -> usize {
        par::product_work(&[self.labels.len(), self.vocab, self.dim])
    }

    fn block(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.vocab)
    }

    /// Phase 1: logits `[V, padded]` and, per block, rows of (max, sum of exponentials, sum) `[blocks, 3, padded]`.
    fn logits(&self) -> (Scratch, Scratch) {
        let &Self { dim, padded, .. } = self;
        let mut hidden_t = scratch(dim * padded);
        let transposed = Matrix {
            data: self.hidden,
            row_stride: 1,
            col_stride: dim,
        };
        copy(transposed, dim, self.labels.len(), &mut hidden_t, padded);
        let hidden_t = Matrix {
            data: &hidden_t,
            row_stride: padded,
            col_stride: 1,
        };
        let mut logits = scratch(self.vocab * padded);
        let mut stats = scratch(blocks(self.vocab) * 3 * padded);
        let (shared_logits, shared_stats) = (Shared::new(&mut logits), Shared::new(&mut stats));
        par::for_each(blocks(self.vocab), self.work(), |block| {
            let range = self.block(block);
            let weight = &self.weight[range.start * dim..range.end * dim];
            let weight = Matrix {
                data: weight,
                row_stride: dim,
                col_stride: 1,
            };
            let at = range.start * padded;
            let to = Target {
                out: shared_logits,
                at,
                row_stride: padded,
            };
            // SAFETY: blocks have logits and statistics of their own.
            let (logits, stats) = unsafe {
                gemm(
                    (range.len(), dim, padded),
                    weight,
                    hidden_t,
                    to,
                    Write::Assign,
                );
                (
                    shared_logits.slice(at, range.len() * padded),
                    shared_stats.slice(block * 3 * padded, 3 * padded),
                )
            };
            block_statistics(logits, stats, padded);
        });
        (logits, stats)
    }

    /// Joins the blocks' statistics, adds to the totals, and returns each row's `lse`.
    fn losses(&self, logits: &[f32], stats: &[f32], totals: &mut [f64; 3]) -> Scratch {
        let padded = self.padded;
        let smoothing = self.params.label_smoothing as f64;
        let mut all_lse = scratch(padded);
        all_lse.fill(f32::INFINITY); // padding and ignored rows: every probability is 0
        for (r, &label) in self.labels.iter().enumerate() {
            if label == self.params.ignore_index {
                continue;
            }
            let blocks = || {
                stats[r..]
                    .chunks(3 * padded)
                    .map(|s| (s[0], s[padded], s[2 * padded]))
            };
            let max = blocks()
                .map(|(max, ..)| max)
                .fold(f32::NEG_INFINITY, f32::max);
            let exp_sum: f64 = blocks()
                .map(|(block_max, sum, _)| (sum * simd::exp(block_max - max)) as f64)
                .sum();
            let lse = max as f64 + exp_sum.ln();
            let mean = blocks().map(|(.., sum)| sum as f64).sum::<f64>() / self.vocab as f64;
            let target = logits[label as usize * padded + r] as f64;
            totals[0] += lse - (1.0 - smoothing) * target - smoothing * mean
                + self.params.z_loss as f64 * lse * lse;
            totals[1] += 1.0;
            totals[2] += lse * lse;
            all_lse[r] = lse as f32;
        }
        all_lse
    }

    /// Phase 2: logits become their gradients; `dweight` grows by this chunk's share.
    fn logits_backward(&self, logits: &mut [f32], lse: &[f32], dweight: Option<&mut [f32]>) {
        let &Self {
            params,
            dim,
            padded,
            ..
        } = self;
        let uniform = params.label_smoothing / self.vocab as f32;
        let mut factors = scratch(2 * padded);
        factors.fill(0.0); // padding and ignored rows have no gradient
        let (probability, target) = factors.split_at_mut(padded);
        for (r, label) in self.labels.iter().enumerate() {
            if *label != params.ignore_index {
                probability[r] = 1.0 + 2.0 * params.z_loss * lse[r];
                target[r] = uniform;
            }
        }
        let (probability, target) = (&*probability, &*target);
        let hidden = Matrix {
            data: self.hidden,
            row_stride: dim,
            col_stride: 1,
        };
        let shared_logits = Shared::new(logits);
        let shared_dweight = dweight.map(Shared::new);
        par::for_each(blocks(self.vocab), self.work(), |block| {
            let range = self.block(block);
            // SAFETY: blocks have logits of their own.
            let logits = unsafe { shared_logits.slice(range.start * padded, range.len() * padded) };
            block_gradients(logits, lse, probability, target);
            for (r, &label) in self.labels.iter().enumerate() {
                let label = label as usize; // ignored rows: checked next
                if range.contains(&label) && self.labels[r] != params.ignore_index {
                    logits[(label - range.start) * padded + r] -= 1.0 - params.label_smoothing;
                }
            }
            if let Some(out) = shared_dweight {
                let dlogits = Matrix {
                    data: logits,
                    row_stride: padded,
                    col_stride: 1,
                };
                let to = Target {
                    out,
                    at: range.start * dim,
                    row_stride: dim,
                };
                let shape = (range.len(), self.labels.len(), dim);
                // SAFETY: blocks have rows of the head of their own.
                unsafe { gemm(shape, dlogits, hidden, to, Write::Accumulate) };
            }
        });
    }

    /// Phase 3.
    fn hidden_backward(&self, dlogits: &[f32], dhidden: &mut [f32]) {
        let &Self {
            dim, padded, vocab, ..
        } = self;
        let rows = self.labels.len();
        // gemm reads the transposed gradients in place in narrow tiles only.
        let tile_cols = narrow_cols();
        let (tile_rows, row_tiles) = par::cut(rows, 96, 4);
        let out = Shared::new(dhidden);
        par::for_each(row_tiles * dim.div_ceil(tile_cols), self.work(), |tile| {
            let (row, col) = (tile % row_tiles * tile_rows, tile / row_tiles * tile_cols);
            let (rows, cols) = (tile_rows.min(rows - row), tile_cols.min(dim - col));
            let dlogits = Matrix {
                data: &dlogits[row..],
                row_stride: 1,
                col_stride: padded,
            };
            let weight = Matrix {
                data: &self.weight[col..],
                row_stride: dim,
                col_stride: 1,
            };
            let to = Target {
                out,
                at: row * dim + col,
                row_stride: dim,
            };
            // SAFETY: tiles are disjoint.
            unsafe { gemm((rows, vocab, cols), dlogits, weight, to, Write::Assign) };
        });
    }
}

vectorize! {
    /// Per row (a lane): the maximum, the sum of exponentials relative to it, and the sum of a block of logits.
    fn block_statistics(logits: &[f32], stats: &mut [f32], padded: usize) {
        let (max, sums) = stats.split_at_mut(padded);
        let (exp_sum, sum) = sums.split_at_mut(padded);
        max.fill(f32::NEG_INFINITY);
        exp_sum.fill(0.0);
        sum.fill(0.0);
        for logits in logits.chunks_exact(padded) {
            for ((max, sum), logit) in max.iter_mut().zip(sum.iter_mut()).zip(logits) {
                *max = if *logit > *max { *logit } else { *max };
                *sum += logit;
            }
        }
        for logits in logits.chunks_exact(padded) {
            for ((exp_sum, max), logit) in exp_sum.iter_mut().zip(max.iter()).zip(logits) {
                *exp_sum += simd::exp(logit - max);
            }
        }
    }
}

vectorize! {
    /// Logits of a block become their gradients, but for the label's own share.
    fn block_gradients(logits: &mut [f32], lse: &[f32], probability: &[f32], target: &[f32]) {
        for logits in logits.chunks_exact_mut(lse.len()) {
            let factors = lse.iter().zip(probability).zip(target);
            for (logit, ((lse, probability), target)) in logits.iter_mut().zip(factors) {
                *logit = simd::exp(*logit - lse) * probability - target;
            }
        }
    }
}
