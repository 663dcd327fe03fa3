//! Embedding: `y[r] = weight[ids[r]]`; backward `dweight[ids[r]] += dy[r]`.
//!
//! Layouts: `weight`, `dweight` dense `[V, D]`; `y`, `dy` `[rows, D]`; all f32, but `weight` may be frozen in 16 bits.
//! The backward pass gives each task a range of the vocabulary, for many threads also of the columns, so every element of
//! `dweight` is summed by one task in the order of `r`, and rows without a token are not touched.
//! Reference: [`crate::reference::embedding`].

use super::elementwise::cast_piece;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::simd::{LANES, vectorize};

pub(crate) fn forward<W: Element>(weight: &[W], ids: &[u32], dim: usize, y: &mut [f32]) {
    if dim == 0 {
        return;
    }
    let per_task = par::rows_per_task(ids.len(), dim);
    let y = Shared::new(y);
    par::for_each(ids.len().div_ceil(per_task), ids.len() * dim, &|task| {
        let first = task * per_task;
        let ids = &ids[first..ids.len().min(first + per_task)];
        // SAFETY: tasks have rows of their own.
        let y = unsafe { y.slice(first * dim, ids.len() * dim) };
        for (y, id) in y.chunks_exact_mut(dim).zip(ids) {
            cast_piece(&weight[*id as usize * dim..][..dim], y);
        }
    });
}

pub(crate) fn backward(ids: &[u32], dy: &[f32], dim: usize, dweight: &mut [f32]) {
    let vocab = dweight.len() / dim;
    // Every task reads all ids, hence few.
    let (per_piece, pieces) = par::cut(vocab, 64, 16);
    let (cols, along_cols) = par::cut(dim, LANES, par::enough_tasks().div_ceil(pieces.max(1)));
    let shared = Shared::new(dweight);
    par::for_each(pieces * along_cols, dy.len(), &|task| {
        let (piece, col) = (task / along_cols, task % along_cols * cols);
        let cols = cols.min(dim - col);
        let range = piece * per_piece..((piece + 1) * per_piece).min(vocab);
        for (dy, id) in dy.chunks_exact(dim).zip(ids) {
            let id = *id as usize;
            if range.contains(&id) {
                // SAFETY: the row belongs to this piece's range of the vocabulary, and the columns to the task.
                add_row(&dy[col..][..cols], unsafe {
                    shared.slice(id * dim + col, cols)
                });
            }
        }
    });
}

vectorize! {
    fn add_row(dy: &[f32], dweight: &mut [f32]) {
        for (dweight, dy) in dweight.iter_mut().zip(dy) {
            *dweight += dy;
        }
    }
}
