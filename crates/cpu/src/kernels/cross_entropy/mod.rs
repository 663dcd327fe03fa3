//! Cross-entropy of a linear head, logits made and used chunk by chunk, for the rows that have a label.
//!
//! Formula: [`CrossEntropyParams`]; with `p = softmax(z)`, smoothing `s` and z-loss `w` the gradient of a row's loss is
//! `dz[c] = p[c] (1 + 2 w lse) - s / V - (1 - s) [c = label]`.
//! Layouts: `hidden` `[rows, D]`, `weight` `[V, D]`, `labels` `[rows]`, all dense. The type of `hidden` is that of the
//! products: weights, and gradients of logits, are rounded to it while they are packed.
//!
//! [`linear`] sums the losses and makes the gradients with the same logits. Where it is known only later what each loss
//! counts, [`token_losses`] gives them one by one, and [`token_losses_backward`] makes the logits a second time.
//!
//! Scratch: the logits of a chunk, up to 8 Mi of them or, of a larger head, two thirds as many as it has weights; and its
//! hidden states.
//! Numeric notes: logits are f32, the max subtracted; the sum of losses in f64. Blocks, ranges and chunks depend on the shape
//! and on how many rows have a label.
//! Reference: [`crate::reference::linear_cross_entropy`].

mod chunk;
mod labelled;

use candle_core::DType;

use self::chunk::{Chunk, chunk_scratch};
use self::labelled::{Labelled, MAX_ROWS};
use super::elementwise::fill;
use crate::element::Element;
use crate::pool::scratch;
use crate::simd::LANES;
use crate::{CrossEntropyParams, Write};

/// Logits that may be held at once whatever the size of the head.
const FEW_LOGITS: usize = 8 << 20;

/// Rows of hidden states per chunk. Each chunk reads the head twice and its gradient once, so that few rows wait for memory:
/// on AVX-512 the loss of 1024 tokens of 32,000 takes a tenth longer in four chunks than in two (a fifth in bf16). Logits of
/// `2 / 3 * dim` rows take two thirds of what the gradient takes.
fn chunk_rows(rows: usize, vocab: usize, dim: usize) -> usize {
    let most = (FEW_LOGITS / vocab.max(1)).max(dim * 2 / 3);
    equal_chunks(rows, (most / 64 * 64).clamp(64, MAX_ROWS))
}

/// Rows of each of as few equal chunks as there can be of at most `most` rows, in whole vectors.
fn equal_chunks(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(LANES)
}

/// What goes into a loss.
pub(crate) struct Operands<'a, T, W> {
    pub(crate) params: &'a CrossEntropyParams,
    /// `[rows, D]`.
    pub(crate) hidden: &'a [T],
    /// `[V, D]`.
    pub(crate) weight: &'a [W],
    /// `[rows]`, each below `V` or `ignore_index`.
    pub(crate) labels: &'a [i64],
    pub(crate) dim: usize,
}

impl<T: Element, W: Element> Operands<'_, T, W> {
    /// `f` of each chunk of the rows that have a label, in order. There may be none.
    fn for_each_chunk(&self, mut f: impl FnMut(&Chunk<T, W>)) {
        let &Self {
            labels,
            weight,
            dim,
            ..
        } = self;
        let labelled = labels.iter().copied().enumerate();
        let mut labelled = labelled.filter(|(_, label)| *label != self.params.ignore_index);
        let count = labelled.clone().count();
        if count == 0 {
            return;
        }
        // By the shape first: fewer rows never make a larger chunk, so that a batch without a label more is planned for all.
        let most = equal_chunks(count, chunk_rows(labels.len(), weight.len() / dim, dim));
        let mut hidden = scratch(most.min(count) * dim);
        for first in (0..count).step_by(most) {
            let rows = Labelled::next(&mut labelled, most.min(count - first));
            rows.gather(self.hidden, dim, &mut hidden);
            let hidden = &hidden[..rows.len() * dim];
            f(&Chunk::new(self.params, &rows, hidden, weight, dim));
        }
    }
}

/// Returns (summed loss, rows with a label, summed `lse^2`). The gradients are those of `grad_scale` times the sum.
pub(crate) fn linear<T: Element, W: Element>(
    operands: &Operands<T, W>,
    grad_scale: f32,
    dhidden: Option<&mut [T]>,
    dweight: Option<&mut [f32]>,
) -> [f32; 3] {
    let mut totals = [0.0f64; 3];
    let mut gradients = Gradients::new(dhidden, dweight, Write::Assign);
    operands.for_each_chunk(|chunk| {
        let (mut logits, stats) = chunk.logits();
        let lse = chunk.losses(&logits, &stats, |_, loss, lse| {
            totals[0] += loss;
            totals[1] += 1.0;
            totals[2] += lse * lse;
        });
        gradients.add(chunk, &mut logits, &lse, |_| grad_scale);
    });
    gradients.finish();
    totals.map(|total| total as f32)
}

/// The loss of each row, 0 where there is no label.
pub(crate) fn token_losses<T: Element, W: Element>(operands: &Operands<T, W>, losses: &mut [f32]) {
    losses.fill(0.0);
    operands.for_each_chunk(|chunk| {
        let (logits, stats) = chunk.logits();
        let rows = chunk.rows().rows();
        chunk.losses(&logits, &stats, |row, loss, _| {
            losses[rows[row] as usize] = loss as f32;
        });
    });
}

/// The gradients of the losses of [`token_losses`], each times its element of `upstream` `[rows]`: `dhidden` is assigned,
/// `dweight` written.
pub(crate) fn token_losses_backward<T: Element, W: Element>(
    operands: &Operands<T, W>,
    upstream: &[f32],
    dhidden: Option<&mut [T]>,
    dweight: Option<&mut [f32]>,
    write: Write,
) {
    let mut gradients = Gradients::new(dhidden, dweight, write);
    operands.for_each_chunk(|chunk| {
        let (mut logits, stats) = chunk.logits();
        let lse = chunk.losses(&logits, &stats, |_, _, _| ());
        let rows = chunk.rows().rows();
        gradients.add(chunk, &mut logits, &lse, |row| upstream[rows[row] as usize]);
    });
    gradients.finish();
}

/// The gradients that are asked for, as chunks add to them.
struct Gradients<'a, T> {
    hidden: Option<&'a mut [T]>,
    weight: Option<&'a mut [f32]>,
    /// What the next chunk does to `weight`.
    write: Write,
}

impl<'a, T: Element> Gradients<'a, T> {
    fn new(mut hidden: Option<&'a mut [T]>, weight: Option<&'a mut [f32]>, write: Write) -> Self {
        if let Some(hidden) = &mut hidden {
            fill(hidden, 0.0); // rows without a label
        }
        Self {
            hidden,
            weight,
            write,
        }
    }

    /// `scale` is of a row of the chunk.
    fn add<W: Element>(
        &mut self,
        chunk: &Chunk<T, W>,
        logits: &mut [f32],
        lse: &[f32],
        scale: impl Fn(usize) -> f32,
    ) {
        if self.hidden.is_none() && self.weight.is_none() {
            return;
        }
        let weight = self.weight.as_deref_mut();
        chunk.logits_backward(logits, lse, scale, weight, self.write);
        self.write = Write::Accumulate;
        if let Some(hidden) = &mut self.hidden {
            chunk.hidden_backward(logits, hidden);
        }
    }

    /// Where there was no chunk, no gradient is assigned: it is 0.
    fn finish(self) {
        if let (Some(weight), Write::Assign) = (self.weight, self.write) {
            fill(weight, 0.0);
        }
    }
}

/// What is taken from the pool for operands of these types, where all rows have a label: elements of the buffers held at
/// once, at each moment that may be the greatest.
pub(crate) fn linear_scratch(
    types: [DType; 2],
    rows: usize,
    vocab: usize,
    dim: usize,
    backward: bool,
) -> Vec<Vec<usize>> {
    if rows == 0 || vocab == 0 {
        return Vec::new();
    }
    let most = chunk_rows(rows, vocab, dim);
    let last = (rows - 1) % most + 1;
    let hidden = most.min(rows) * dim;
    let moments = [most.min(rows), last].into_iter().flat_map(|rows| {
        let moments = chunk_scratch(types, rows, vocab, dim, backward);
        moments.map(|mut held| {
            held.push(hidden);
            held
        })
    });
    moments.collect()
}
