//! Rows that have a label: the others cost nothing but a look at their label.
//!
//! In fine-tuning on answers a good part of all tokens has none, in masked language modelling five in six.

use crate::element::Element;
use crate::kernels::elementwise::cast_piece;
use crate::par::{self, Shared};

/// Rows of a chunk, at most.
pub(super) const MAX_ROWS: usize = 1024;

/// Which rows of all a chunk has, in order, and their labels.
pub(super) struct Labelled {
    len: usize,
    rows: [u32; MAX_ROWS],
    labels: [u32; MAX_ROWS],
}

impl Labelled {
    /// The next `most` (row, label); fewer at the end.
    pub(super) fn next(from: &mut impl Iterator<Item = (usize, i64)>, most: usize) -> Self {
        let mut this = Self {
            len: 0,
            rows: [0; MAX_ROWS],
            labels: [0; MAX_ROWS],
        };
        for (row, label) in from.take(most) {
            this.rows[this.len] = row as u32;
            this.labels[this.len] = label as u32;
            this.len += 1;
        }
        this
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Of each, where it is among all.
    pub(super) fn rows(&self) -> &[u32] {
        &self.rows[..self.len]
    }

    pub(super) fn labels(&self) -> &[u32] {
        &self.labels[..self.len]
    }

    /// These of `all` rows of `dim`, one after another.
    pub(super) fn gather<T: Element>(&self, all: &[T], dim: usize, out: &mut [f32]) {
        let out = Shared::new(out);
        self.for_each(dim, |i, row| {
            // SAFETY: tasks have rows of their own.
            let out = unsafe { out.slice(i * dim, dim) };
            cast_piece(&all[row * dim..][..dim], out);
        });
    }

    /// `write(row of the chunk, its place)` for the place of each in `all` rows of `dim`.
    pub(super) fn write<T: Element>(
        &self,
        all: &mut [T],
        dim: usize,
        write: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let all = Shared::new(all);
        self.for_each(dim, |i, row| {
            // SAFETY: no two rows of a chunk are the same.
            write(i, unsafe { all.slice(row * dim, dim) });
        });
    }

    /// `f(row of the chunk, row of all)`, on all threads.
    fn for_each(&self, dim: usize, f: impl Fn(usize, usize) + Sync) {
        let per_task = par::rows_per_task(self.len, dim);
        par::for_each(self.len.div_ceil(per_task), self.len * dim, &|task| {
            let rows = self.rows().iter().enumerate().skip(task * per_task);
            for (i, &row) in rows.take(per_task) {
                f(i, row as usize);
            }
        });
    }
}
