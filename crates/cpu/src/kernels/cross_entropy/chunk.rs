//! One chunk of rows on its way through the loss of a linear head: three phases over its logits, which lie transposed,
//! `[V, R]`, so that all three products read their operands in place, and max and sum run along lanes without a horizontal
//! step.
//!
//! 1. per block of the vocabulary: `logits = weight . hidden^T`, and each row's max and sum of exponentials in the block;
//!    then, over the blocks in order, each row's `lse` and loss;
//! 2. per block: logits become their gradients, `dweight += dlogits . hidden`;
//! 3. per tile: `dhidden = dlogits^T . weight`, summed over parts of the vocabulary, where a chunk has few tiles by several
//!    tasks, whose sums are added in order.

use std::marker::PhantomData;

use candle_core::DType;

use super::labelled::Labelled;
use crate::element::Element;
use crate::kernels::matmul::{
    Matrix, Target, multiply, multiply_len, pack, pack_len, pack_on_all_threads, tiles,
};
use crate::par::{self, Shared};
use crate::pool::{Scratch, carve, scratch};
use crate::simd::{self, LANES, vectorize};
use crate::{CrossEntropyParams, Write};

/// Rows of the head that one task takes.
const BLOCK: usize = 128;
/// Rows of the head that one product with gradients of logits takes.
const PART: usize = 1024;
/// Parts of a range of the vocabulary, at least: for fewer, writing and adding sums of ranges would show.
const RANGE_PARTS: usize = 4;

/// Blocks of the vocabulary.
fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

/// What a chunk of `rows` takes from the pool for operands of these types: elements of the buffers held at once, at each
/// moment that may be the greatest.
pub(super) fn chunk_scratch(
    [hidden, weight]: [DType; 2],
    rows: usize,
    vocab: usize,
    dim: usize,
    backward: bool,
) -> [Vec<usize>; 4] {
    let padded = rows.next_multiple_of(LANES);
    let (blocks, work) = (blocks(vocab), par::product_work(&[rows, vocab, dim]));
    let with = |tasks, len| par::scratch_len(tasks, work, len);
    let (logits, stats) = (vocab * padded, blocks * 3 * padded);
    let product = multiply_len(hidden, weight, DType::F32, 1, (BLOCK, dim, padded));
    let packed = pack_len(hidden, dim, rows);
    let first = vec![packed, logits, stats, with(blocks, product)];
    let held = [logits, stats, padded];
    let joined = 3 * Joints::new(rows, vocab).ranges * padded;
    let losses = [&held[..], &[joined]].concat();
    if !backward {
        return [first, losses, Vec::new(), Vec::new()];
    }
    let packed = pack_len(hidden, rows, dim);
    let product = multiply_len(hidden, DType::F32, DType::F32, 1, (BLOCK, rows, dim));
    let second = [3 * padded, packed, with(blocks, product)];
    let tiles = Tiles::new(hidden, rows, vocab, dim);
    let sums = tiles.ranges * rows * dim;
    let third = [sums, with(tiles.count(), tiles.scratch_len(hidden))];
    [
        first,
        losses,
        [&held[..], &second].concat(),
        [&held[..], &third].concat(),
    ]
}

/// How the blocks' statistics of a chunk are joined: ranges of blocks, for [`LANES`] rows a task.
struct Joints {
    along_rows: usize,
    blocks: usize,
    ranges: usize,
}

impl Joints {
    fn new(rows: usize, vocab: usize) -> Self {
        let along_rows = rows.div_ceil(LANES);
        let (blocks, ranges) = par::cut(blocks(vocab), 1, par::PIECES.div_ceil(along_rows));
        Self {
            along_rows,
            blocks,
            ranges,
        }
    }
}

/// How the gradient of a chunk of hidden states is cut. Only tiles follow the number of threads.
struct Tiles {
    /// Of the vocabulary, each with sums of its own: more than one only where the tiles alone would be too few.
    ranges: usize,
    /// Rows of the head of a range, whole parts.
    vocab: usize,
    rows: usize,
    cols: usize,
    along_rows: usize,
    along_cols: usize,
}

impl Tiles {
    fn new(hidden: DType, rows: usize, vocab: usize, dim: usize) -> Self {
        // A tile packs its part of the head for its own rows, so these are not few.
        let largest = (par::cut(rows, 96, 4).0, 256);
        let count = rows.div_ceil(largest.0) * dim.div_ceil(largest.1).max(1);
        let parts = vocab.div_ceil(PART);
        let parts_of_range = (parts / par::PIECES.div_ceil(count)).max(RANGE_PARTS);
        let ranges = parts.div_ceil(parts_of_range);
        // Smaller tiles pack more, hence only where threads would wait.
        let enough = par::enough_tasks() / 2;
        let (tile_rows, cols) = tiles(hidden, ranges, (rows, dim), largest, enough);
        Self {
            ranges,
            vocab: parts_of_range * PART,
            rows: tile_rows,
            cols,
            along_rows: rows.div_ceil(tile_rows),
            along_cols: dim.div_ceil(cols),
        }
    }

    fn count(&self) -> usize {
        self.ranges * self.along_rows * self.along_cols
    }

    /// Scratch of a tile: its part of the head, and that of the product.
    fn scratch_len(&self, hidden: DType) -> usize {
        let shape = (self.rows, PART, self.cols);
        let product = multiply_len(hidden, DType::F32, DType::F32, LANES, shape);
        self.pack_len(hidden) + product
    }

    fn pack_len(&self, hidden: DType) -> usize {
        pack_len(hidden, PART, self.cols)
    }
}

/// Products are of type `T`.
pub(super) struct Chunk<'a, T, W> {
    params: &'a CrossEntropyParams,
    rows: &'a Labelled,
    /// `[R, D]`: of these rows alone.
    hidden: &'a [f32],
    weight: &'a [W],
    dim: usize,
    vocab: usize,
    /// Rows of the chunk rounded up to whole vectors: the row length of the transposed logits.
    padded: usize,
    products: PhantomData<T>,
}

impl<'a, T: Element, W: Element> Chunk<'a, T, W> {
    pub(super) fn new(
        params: &'a CrossEntropyParams,
        rows: &'a Labelled,
        hidden: &'a [f32],
        weight: &'a [W],
        dim: usize,
    ) -> Self {
        Self {
            params,
            rows,
            hidden,
            weight,
            dim,
            vocab: weight.len() / dim,
            padded: rows.len().next_multiple_of(LANES),
            products: PhantomData,
        }
    }

    pub(super) fn rows(&self) -> &'a Labelled {
        self.rows
    }

    fn work(&self) -> usize {
        par::product_work(&[self.rows.len(), self.vocab, self.dim])
    }

    fn block(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.vocab)
    }

    /// Phase 1: logits `[V, padded]` and, per block, rows of (max, sum of exponentials, sum) `[blocks, 3, padded]`.
    pub(super) fn logits(&self) -> (Scratch, Scratch) {
        let &Self { dim, padded, .. } = self;
        let rows = self.rows.len();
        let mut packed = scratch(pack_len(T::DTYPE, dim, rows));
        let hidden_t = Matrix::rows(self.hidden, dim).t();
        let hidden_t = pack_on_all_threads::<T, f32>(hidden_t, dim, rows, &mut packed);
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

    /// Statistics of ranges of blocks, `[ranges, 3, padded]`.
    fn joined(&self, stats: &[f32]) -> Scratch {
        let padded = self.padded;
        let joints = Joints::new(self.rows.len(), self.vocab);
        let mut joined = scratch(joints.ranges * 3 * padded);
        let out = Shared::new(&mut joined);
        let work = 4 * stats.len() / 3; // an exponential for each block and row
        par::for_each(joints.ranges * joints.along_rows, work, &|task| {
            let (range, row) = (task / joints.along_rows, task % joints.along_rows * LANES);
            let from = range * joints.blocks * 3 * padded;
            let to = stats.len().min(from + joints.blocks * 3 * padded);
            for (i, values) in join(&stats[from..to], padded, row).iter().enumerate() {
                // SAFETY: tasks have rows of a range of their own.
                let out = unsafe { out.slice((range * 3 + i) * padded + row, LANES) };
                out.copy_from_slice(values);
            }
        });
        joined
    }

    /// Joins the blocks' statistics, tells `each` of its row of the chunk, its loss and its `lse`, and returns each row's
    /// `lse`.
    pub(super) fn losses(
        &self,
        logits: &[f32],
        stats: &[f32],
        mut each: impl FnMut(usize, f64, f64),
    ) -> Scratch {
        let padded = self.padded;
        let smoothing = self.params.label_smoothing as f64;
        let mut all_lse = scratch(padded);
        all_lse.fill(f32::INFINITY); // padding: every probability is 0
        let joined = self.joined(stats);
        for (first, labels) in (0..).step_by(LANES).zip(self.rows.labels().chunks(LANES)) {
            let [max, exp_sum, sum] = join(&joined, padded, first);
            for (i, &label) in labels.iter().enumerate() {
                let lse = max[i] as f64 + (exp_sum[i] as f64).ln();
                let mean = sum[i] as f64 / self.vocab as f64;
                let target = logits[label as usize * padded + first + i] as f64;
                let loss = lse - (1.0 - smoothing) * target - smoothing * mean
                    + self.params.z_loss as f64 * lse * lse;
                each(first + i, loss, lse);
                all_lse[first + i] = lse as f32;
            }
        }
        all_lse
    }

    /// Phase 2: logits become the gradients of `scale(row of the chunk)` times each row's loss; `dweight` becomes this chunk's
    /// share, or grows by it.
    pub(super) fn logits_backward(
        &self,
        logits: &mut [f32],
        lse: &[f32],
        scale: impl Fn(usize) -> f32,
        dweight: Option<&mut [f32]>,
        write: Write,
    ) {
        let &Self {
            params,
            dim,
            padded,
            ..
        } = self;
        let rows = self.rows.len();
        let mut factors = scratch(3 * padded);
        factors.fill(0.0); // padding has no gradient
        let (probability, others) = factors.split_at_mut(padded);
        let (everywhere, at_label) = others.split_at_mut(padded);
        for r in 0..rows {
            let scale = scale(r);
            probability[r] = scale * (1.0 + 2.0 * params.z_loss * lse[r]);
            everywhere[r] = scale * (params.label_smoothing / self.vocab as f32);
            at_label[r] = scale * (1.0 - params.label_smoothing);
        }
        let (probability, everywhere, at_label) = (&*probability, &*everywhere, &*at_label);
        let asked = dweight.is_some();
        let mut packed = scratch(if asked {
            pack_len(T::DTYPE, rows, dim)
        } else {
            0
        });
        let hidden = Matrix::rows(self.hidden, dim);
        let hidden = asked.then(|| pack_on_all_threads::<T, f32>(hidden, rows, dim, &mut packed));
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
                block_gradients(logits, lse, probability, everywhere);
                for (r, &label) in self.rows.labels().iter().enumerate() {
                    let label = label as usize;
                    if range.contains(&label) {
                        logits[(label - range.start) * padded + r] -= at_label[r];
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
                    // SAFETY: blocks have rows of the head of their own.
                    unsafe { multiply::<T, f32, f32>(shape, dlogits, hidden, to, write, product) };
                }
            },
        );
    }

    /// Phase 3: `dhidden` `[rows of all, D]` at the chunk's rows.
    pub(super) fn hidden_backward(&self, dlogits: &[f32], dhidden: &mut [T]) {
        let &Self { dim, padded, .. } = self;
        let rows = self.rows.len();
        let tiles = Tiles::new(T::DTYPE, rows, self.vocab, dim);
        let mut sums = scratch(tiles.ranges * rows * dim); // [ranges, rows, D]
        let out = Shared::new(&mut sums);
        let len = tiles.scratch_len(T::DTYPE);
        par::for_each_with(tiles.count(), self.work(), len, &|task, mut scratch| {
            let (range, tile) = (task % tiles.ranges, task / tiles.ranges);
            let row = tile % tiles.along_rows * tiles.rows;
            let col = tile / tiles.along_rows * tiles.cols;
            let vocab = range * tiles.vocab..self.vocab.min((range + 1) * tiles.vocab);
            let (rows_of_tile, cols) = (tiles.rows.min(rows - row), tiles.cols.min(dim - col));
            let packed = carve(&mut scratch, tiles.pack_len(T::DTYPE));
            for first in vocab.clone().step_by(PART) {
                let part = PART.min(vocab.end - first);
                let dlogits = Matrix::rows(dlogits, padded).from(first, row).t();
                let weight = Matrix::rows(self.weight, dim).from(first, col);
                let weight = pack::<T, W>(weight, part, cols, packed);
                let to = Target {
                    out,
                    at: (range * rows + row) * dim + col,
                    row_stride: dim,
                };
                let shape = (rows_of_tile, part, cols);
                let write = assign_if(first == vocab.start);
                // SAFETY: tiles of ranges are disjoint.
                unsafe { multiply::<T, f32, f32>(shape, dlogits, weight, to, write, scratch) };
            }
        });
        let (of_first, others) = sums.split_at(rows * dim);
        self.rows.write(dhidden, dim, |row, dhidden| {
            let first = row * dim;
            add_ranges(&of_first[first..], others, rows * dim, first, dhidden);
        });
    }
}

/// What the first of several that are summed does.
fn assign_if(is_first: bool) -> Write {
    if is_first {
        Write::Assign
    } else {
        Write::Accumulate
    }
}

vectorize! {
    /// `out = sum` and, from `first` on, those of the other ranges, each `len` long, in order.
    fn add_ranges<T: Element>(sum: &[f32], others: &[f32], len: usize, first: usize, out: &mut [T]) {
        for (i, (out, sum)) in out.iter_mut().zip(sum).enumerate() {
            let mut sum = *sum;
            for range in 0..others.len() / len {
                sum += others[range * len + first + i];
            }
            *out = T::round(sum);
        }
    }
}

vectorize! {
    /// The statistics of several blocks as those of one, for [`LANES`] rows from `row` on; sums in f64, rounded once.
    fn join(stats: &[f32], padded: usize, row: usize) -> [[f32; LANES]; 3] {
        let mut max = [f32::NEG_INFINITY; LANES];
        for stats in stats.chunks_exact(3 * padded) {
            for (max, of_block) in max.iter_mut().zip(&stats[row..][..LANES]) {
                *max = if *of_block > *max { *of_block } else { *max };
            }
        }
        let (mut exp_sum, mut sum) = ([0.0f64; LANES], [0.0f64; LANES]);
        for stats in stats.chunks_exact(3 * padded) {
            let [of_max, of_exp_sum, of_sum] = [0, padded, 2 * padded].map(|at| &stats[at + row..][..LANES]);
            for i in 0..LANES {
                exp_sum[i] += (of_exp_sum[i] * simd::exp::<F>(of_max[i] - max[i])) as f64;
                sum[i] += of_sum[i] as f64;
            }
        }
        [max, exp_sum.map(|x| x as f32), sum.map(|x| x as f32)]
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
    fn block_gradients(logits: &mut [f32], lse: &[f32], probability: &[f32], everywhere: &[f32]) {
        for logits in logits.chunks_exact_mut(lse.len()) {
            let factors = lse.iter().zip(probability).zip(everywhere);
            for (logit, ((lse, probability), everywhere)) in logits.iter_mut().zip(factors) {
                *logit = simd::exp::<F>(*logit - lse) * probability - everywhere;
            }
        }
    }
}
