//! Cross-entropy of a linear head, logits made and used chunk by chunk.
//!
//! Formula: [`CrossEntropyParams`]; with `p = softmax(z)`, smoothing `s` and z-loss `w` the gradient of a valid row is
//! `dz[c] = p[c] (1 + 2 w lse) - s / V - (1 - s) [c = label]`, times `grad_scale`.
//! Layouts: `hidden` `[rows, D]`, `weight` `[V, D]`, `labels` `[rows]`, all dense. The type of `hidden` is that of the
//! products: weights, and gradients of logits, are rounded to it while they are packed.
//!
//! A chunk of rows `R` goes through three phases, its logits held transposed, `[V, R]`: so all three products read their
//! operands in place, and max and sum run along lanes without a horizontal step.
//! 1. per block of the vocabulary: `logits = weight . hidden^T`, and each row's max and sum of exponentials in the block;
//!    then, over the blocks in order, each row's `lse` and loss;
//! 2. per block: logits become their gradients, `dweight += dlogits . hidden`;
//! 3. per tile: `dhidden = dlogits^T . weight`, summed over parts of the vocabulary.
//!
//! Scratch: the logits of a chunk, up to 8 Mi (fewer than 128 rows only if the vocabulary exceeds 64 Ki).
//! Numeric notes: logits are f32, the max subtracted; the sum of losses in f64. Blocks and chunks depend on the shape alone.
//! Reference: [`crate::reference::linear_cross_entropy`].

use candle_core::DType;

use super::matmul::{Matrix, Target, multiply, multiply_len, pack, pack_len, store};
use crate::element::Element;
use crate::par::{self, Shared};
use crate::pool::{Scratch, carve, scratch};
use crate::simd::{self, LANES, vectorize};
use crate::{CrossEntropyParams, Write};

/// Rows of the head that one task takes.
const BLOCK: usize = 128;
/// Rows of the head that one product with gradients of logits takes.
const PART: usize = 1024;
/// Most logits held at once.
const MAX_LOGITS: usize = 8 << 20;

/// Rows of hidden states per chunk.
fn chunk_rows(rows: usize, vocab: usize) -> usize {
    let most = (MAX_LOGITS / vocab.max(1) / 64 * 64).clamp(64, 1024);
    // Equal chunks of whole vectors.
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(LANES)
}

/// Returns (summed loss, valid rows, summed `lse^2`).
#[expect(clippy::too_many_arguments, reason = "those of the trait's method")]
pub(crate) fn linear<T: Element, W: Element>(
    params: &CrossEntropyParams,
    grad_scale: f32,
    hidden: &[T],
    weight: &[W],
    labels: &[i64],
    dim: usize,
    mut dhidden: Option<&mut [T]>,
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
            grad_scale,
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

/// What [`linear`] takes from the pool for operands of these types: elements of the buffers held at once, at each moment
/// that may be the greatest.
pub(crate) fn linear_scratch(
    [hidden, weight]: [DType; 2],
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
    let moments = [most.min(rows), last].map(|rows| {
        let padded = rows.next_multiple_of(LANES);
        let (blocks, work) = (blocks(vocab), par::product_work(&[rows, vocab, dim]));
        let with = |tasks, len| par::scratch_len(tasks, work, len);
        let (logits, stats) = (vocab * padded, blocks * 3 * padded);
        let product = multiply_len(hidden, weight, DType::F32, 1, (BLOCK, dim, padded));
        let packed = pack_len(hidden, dim, rows);
        let first = vec![packed, logits, stats, with(blocks, product)];
        if !backward {
            return [first, Vec::new(), Vec::new()];
        }
        let held = [logits, stats, padded];
        let packed = pack_len(hidden, rows, dim);
        let product = multiply_len(hidden, DType::F32, DType::F32, 1, (BLOCK, rows, dim));
        let second = [2 * padded, packed, with(blocks, product)];
        let tiles = Tiles::new(rows, dim);
        let third = [with(tiles.count(), tiles.scratch_len(hidden))];
        [
            first,
            [&held[..], &second].concat(),
            [&held[..], &third].concat(),
        ]
    });
    moments.into_iter().flatten().collect()
}

/// How the gradient of a chunk of hidden states is cut.
struct Tiles {
    rows: usize,
    cols: usize,
    along_rows: usize,
    along_cols: usize,
}

impl Tiles {
    fn new(rows: usize, dim: usize) -> Self {
        let cols = 256;
        let (rows, along_rows) = par::cut(rows, 96, 4);
        Self {
            rows,
            cols,
            along_rows,
            along_cols: dim.div_ceil(cols),
        }
    }

    fn count(&self) -> usize {
        self.along_rows * self.along_cols
    }

    /// Scratch of a tile: its sums, its part of the head, and that of the product.
    fn scratch_len(&self, hidden: DType) -> usize {
        let shape = (self.rows, PART, self.cols);
        let product = multiply_len(hidden, DType::F32, DType::F32, LANES, shape);
        self.rows * self.cols + self.pack_len(hidden) + product
    }

    fn pack_len(&self, hidden: DType) -> usize {
        pack_len(hidden, PART, self.cols)
    }
}

struct Chunk<'a, T, W> {
    params: &'a CrossEntropyParams,
    grad_scale: f32,
    hidden: &'a [T],
    weight: &'a [W],
    labels: &'a [i64],
    dim: usize,
    vocab: usize,
    /// Rows of the chunk rounded up to whole vectors: the row length of the transposed logits.
    padded: usize,
}

impl<T: Element, W: Element> Chunk<'_, T, W> {
    fn work(&self) -> usize {
        par::product_work(&[self.labels.len(), self.vocab, self.dim])
    }

    fn block(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.vocab)
    }

    /// Phase 1: logits `[V, padded]` and, per block, rows of (max, sum of exponentials, sum) `[blocks, 3, padded]`.
    fn logits(&self) -> (Scratch, Scratch) {
        let &Self { dim, padded, .. } = self;
        let rows = self.labels.len();
        let mut packed = scratch(pack_len(T::DTYPE, dim, rows));
        let hidden_t = Matrix::rows(self.hidden, dim).t();
        let hidden_t = pack::<T, T>(hidden_t, dim, rows, &mut packed);
        let mut logits = scratch(self.vocab * padded);
        let mut stats = scratch(blocks(self.vocab) * 3 * padded);
        let (shared_logits, shared_stats) = (Shared::new(&mut logits), Shared::new(&mut stats));
        let product_len = multiply_len(T::DTYPE, W::DTYPE, DType::F32, 1, (BLOCK, dim, padded));
        par::for_each_with(
            blocks(self.vocab),
            self.work(),
            product_len,
            &|block, product| {
                let range = self.block(block);
                let weight = Matrix::rows(&self.weight[range.start * dim..range.end * dim], dim);
                let at = range.start * padded;
                let shape = (range.len(), dim, padded);
                // SAFETY: blocks have logits and statistics of their own.
                let (logits, stats) = unsafe {
                    (
                        shared_logits.slice(at, range.len() * padded),
                        shared_stats.slice(block * 3 * padded, 3 * padded),
                    )
                };
                let to = Target::rows(logits, padded);
                // SAFETY: `logits` is borrowed exclusively.
                unsafe {
                    multiply::<T, W, f32>(shape, weight, hidden_t, to, Write::Assign, product);
                }
                block_statistics(logits, stats, padded);
            },
        );
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
                .map(|(block_max, sum, _)| {
                    (sum * simd::exp::<simd::Generic>(block_max - max)) as f64
                })
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
            grad_scale,
            dim,
            padded,
            ..
        } = self;
        let uniform = grad_scale * (params.label_smoothing / self.vocab as f32);
        let at_label = grad_scale * (1.0 - params.label_smoothing);
        let mut factors = scratch(2 * padded);
        factors.fill(0.0); // padding and ignored rows have no gradient
        let (probability, target) = factors.split_at_mut(padded);
        for (r, label) in self.labels.iter().enumerate() {
            if *label != params.ignore_index {
                probability[r] = grad_scale * (1.0 + 2.0 * params.z_loss * lse[r]);
                target[r] = uniform;
            }
        }
        let (probability, target) = (&*probability, &*target);
        let rows = self.labels.len();
        let asked = dweight.is_some();
        let mut packed = scratch(if asked {
            pack_len(T::DTYPE, rows, dim)
        } else {
            0
        });
        let hidden =
            asked.then(|| pack::<T, T>(Matrix::rows(self.hidden, dim), rows, dim, &mut packed));
        let product_len = multiply_len(T::DTYPE, DType::F32, DType::F32, 1, (BLOCK, rows, dim));
        let shared_logits = Shared::new(logits);
        let shared_dweight = dweight.map(Shared::new);
        par::for_each_with(
            blocks(self.vocab),
            self.work(),
            product_len,
            &|block, product| {
                let range = self.block(block);
                // SAFETY: blocks have logits of their own.
                let logits =
                    unsafe { shared_logits.slice(range.start * padded, range.len() * padded) };
                block_gradients(logits, lse, probability, target);
                for (r, &label) in self.labels.iter().enumerate() {
                    let label = label as usize; // ignored rows: checked next
                    if range.contains(&label) && self.labels[r] != params.ignore_index {
                        logits[(label - range.start) * padded + r] -= at_label;
                    }
                }
                if let (Some(out), Some(hidden)) = (shared_dweight, hidden) {
                    let to = Target {
                        out,
                        at: range.start * dim,
                        row_stride: dim,
                    };
                    let (shape, dlogits) =
                        ((range.len(), rows, dim), Matrix::rows(&*logits, padded));
                    let add = Write::Accumulate;
                    // SAFETY: blocks have rows of the head of their own.
                    unsafe { multiply::<T, f32, f32>(shape, dlogits, hidden, to, add, product) };
                }
            },
        );
    }

    /// Phase 3.
    fn hidden_backward(&self, dlogits: &[f32], dhidden: &mut [T]) {
        let &Self {
            dim, padded, vocab, ..
        } = self;
        let rows = self.labels.len();
        let (tiles, out) = (Tiles::new(rows, dim), Shared::new(dhidden));
        let len = tiles.scratch_len(T::DTYPE);
        par::for_each_with(tiles.count(), self.work(), len, &|tile, mut scratch| {
            let row = tile % tiles.along_rows * tiles.rows;
            let col = tile / tiles.along_rows * tiles.cols;
            let (rows, cols) = (tiles.rows.min(rows - row), tiles.cols.min(dim - col));
            let sums = carve(&mut scratch, rows * cols);
            let packed = carve(&mut scratch, tiles.pack_len(T::DTYPE));
            sums.fill(0.0);
            for first in (0..vocab).step_by(PART) {
                let part = PART.min(vocab - first);
                let dlogits = Matrix::rows(dlogits, padded).from(first, row).t();
                let weight = Matrix::rows(self.weight, dim).from(first, col);
                let weight = pack::<T, W>(weight, part, cols, packed);
                let to = Target::rows(sums, cols);
                let (shape, add) = ((rows, part, cols), Write::Accumulate);
                // SAFETY: the sums are this task's own.
                unsafe { multiply::<T, f32, f32>(shape, dlogits, weight, to, add, scratch) };
            }
            for (r, sums) in sums.chunks_exact(cols).enumerate() {
                // SAFETY: tiles are disjoint.
                let out = unsafe { out.slice((row + r) * dim + col, cols) };
                store(sums, out, Write::Assign);
            }
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
                *exp_sum += simd::exp::<F>(logit - max);
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
                *logit = simd::exp::<F>(*logit - lse) * probability - target;
            }
        }
    }
}
