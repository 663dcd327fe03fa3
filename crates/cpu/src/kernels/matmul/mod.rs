//! Matrix products `out = a . b` or `out += a . b`, any strides, of f32, bf16 and f16 in any mix.
//!
//! Layouts: `a` `[.., m, k]`, `b` `[.., k, n]` with any strides; `out` dense `[.., m, n]`.
//! `a`'s type is that of the product: `b` is rounded to it, or widened, while it is packed, so that a mixed product
//! (16-bit activations with f32 weights, f32 activations with frozen 16-bit weights) makes no cast copy. Sums are f32,
//! rounded once if `out` is 16-bit.
//!
//! The output is cut into tiles, one task each, which pack their part of `b` ([`pack`]) and then multiply
//! ([`multiply`]); where an operand can be read in place it is. Three ways, chosen by the type of the product:
//! - f32: register tiles for each instruction set ([`micro`]);
//! - bf16 on a machine with AVX512-BF16: our kernel on pairs of numbers ([`pairs`]), up to twice as fast;
//! - bf16 elsewhere, and f16: widened while packing (exact), then as f32.
//!
//! One to four rows times a transposed `b`, a decoding step, is a set of dot products instead: it is bound by
//! reading `b` once.
//!
//! Numeric notes: one chain of f32 sums along `k` per block of at most 384 (all of `k` on pairs); tiles depend on the
//! shape alone, and each is computed by one thread, so the bits depend neither on the number of threads nor on caches.
//! Reference: [`crate::reference::matmul`].

mod micro;
mod pairs;
mod tile;

pub(crate) use tile::{
    Matrix, Packed, Target, multiply, multiply_len, pack, pack_len, pack_or_read, pack_or_read_len,
    store,
};

use candle_core::DType;

use crate::Write;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::simd::{self, vectorize};

/// A strided operand: `strides` are those of all its dims, batch dims first.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a, T> {
    pub data: &'a [T],
    pub strides: &'a [usize],
}

/// Products of the matrices of `a` and `b`, batch by batch.
pub(crate) fn batched<A: Element, B: Element, O: Element>(
    batch: &[usize],
    a: Operand<A>,
    b: Operand<B>,
    (m, k, n): (usize, usize, usize),
    out: &mut [O],
    write: Write,
) {
    let batches: usize = batch.iter().product();
    if out.is_empty() {
        return;
    }
    let (a0, b0) = (matrix(a, batch, 0), matrix(b, batch, 0));
    let types = [A::DTYPE, B::DTYPE, O::DTYPE];
    let plan = Plan::new(types, strides(a0), strides(b0), (m, k, n));
    let tiles = plan.tiles();
    let shared = Shared::new(out);
    let work = par::product_work(&[batches, m, k, n]);
    par::for_each_with(
        batches * tiles,
        work,
        plan.scratch_len(),
        &|task, scratch| {
            let (index, tile) = (task / tiles, task % tiles);
            let (a, b) = (matrix(a, batch, index), matrix(b, batch, index));
            plan.run_tile(tile, a, b, shared, index * m * n, write, scratch);
        },
    );
}

/// Elements of scratch that [`batched`] takes for operands and output of these types; strides are (row, column).
pub(crate) fn batched_scratch(
    types: [DType; 3],
    batches: usize,
    a_strides: (usize, usize),
    b_strides: (usize, usize),
    (m, k, n): (usize, usize, usize),
) -> usize {
    let plan = Plan::new(types, a_strides, b_strides, (m, k, n));
    let work = par::product_work(&[batches, m, k, n]);
    par::scratch_len(batches * plan.tiles(), work, plan.scratch_len())
}

fn strides<T>(matrix: Matrix<T>) -> (usize, usize) {
    (matrix.row_stride, matrix.col_stride)
}

/// Matrix `index` of a batch.
fn matrix<'a, T>(operand: Operand<'a, T>, batch: &[usize], mut index: usize) -> Matrix<'a, T> {
    let (batch_strides, last) = operand.strides.split_at(batch.len());
    let mut at = 0;
    for (dim, stride) in batch.iter().zip(batch_strides).rev() {
        at += index % dim * stride;
        index /= dim;
    }
    let data = operand.data.get(at..).unwrap_or_default(); // an empty batch starts nowhere
    Matrix {
        data,
        row_stride: last[0],
        col_stride: last[1],
    }
}

/// How one product is cut into tiles: by shape, strides and types alone.
#[derive(Clone, Copy)]
struct Plan {
    /// Of `a` (and of the product), `b` and the output.
    types: [DType; 3],
    m: usize,
    k: usize,
    n: usize,
    tile_rows: usize,
    tile_cols: usize,
    /// Whether tiles are dot products.
    dots: bool,
    a_col_stride: usize,
    /// Whether tiles pack their part of `b`; else they read it in place.
    packs_b: bool,
}

/// A product of at most so many rows reads `b` in place where it can: packing would take longer than it saves.
const FEW_ROWS: usize = 48;

impl Plan {
    fn new(
        types: [DType; 3],
        (_, a_col_stride): (usize, usize),
        (b_row_stride, b_col_stride): (usize, usize),
        (m, k, n): (usize, usize, usize),
    ) -> Self {
        let [a, b, _] = types;
        let packs_b = m > FEW_ROWS || !tile::is_packed(a, b, b_col_stride, n);
        // But for the last columns.
        let packs_all = !tile::is_packed(a, b, b_col_stride, 0);
        let dots = m <= 4 && b_row_stride == 1 && b_col_stride != 1 && a_col_stride == 1;
        let (tile_rows, tile_cols) = if dots {
            (m, 64)
        } else if !tile::reads_in_place(a, a, a_col_stride, k, n) {
            // Both operands are packed: large tiles make it cheap, two of them at least occupy two threads.
            (m.div_ceil(2).clamp(96, 384), 256)
        } else if packs_all {
            // All rows at once, so that each column of `b` is packed once.
            (m.clamp(1, 4096), 64)
        } else {
            (384, 256)
        };
        // Equal tiles of whole register tiles (6 rows): an uneven rest would be one thread's idle time.
        let tile_rows = m.div_ceil(m.div_ceil(tile_rows)).next_multiple_of(6);
        Self {
            types,
            m,
            k,
            n,
            tile_rows,
            tile_cols,
            dots,
            a_col_stride,
            packs_b,
        }
    }

    fn col_tiles(&self) -> usize {
        self.n.div_ceil(self.tile_cols)
    }

    fn tiles(&self) -> usize {
        self.m.div_ceil(self.tile_rows) * self.col_tiles()
    }

    /// What a tile needs: its part of `b`, and what the product itself needs.
    fn scratch_len(&self) -> usize {
        let &Self { k, .. } = self;
        let (cols, [a, _, o]) = (self.tile_cols.min(self.n), self.types);
        match self.dots {
            true => 0,
            false => {
                let shape = (self.tile_rows, k, cols);
                self.pack_len(cols) + multiply_len(a, a, o, self.a_col_stride, shape)
            }
        }
    }

    /// Scratch for packing `cols` columns of `b`.
    fn pack_len(&self, cols: usize) -> usize {
        match self.packs_b {
            true => pack_len(self.types[0], self.k, cols),
            false => 0,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run_tile<A: Element, B: Element, O: Element>(
        &self,
        tile: usize,
        a: Matrix<A>,
        b: Matrix<B>,
        out: Shared<O>,
        out_at: usize,
        write: Write,
        scratch: &mut [f32],
    ) {
        let &Self { m, k, n, .. } = self;
        let (row, col) = (
            tile / self.col_tiles() * self.tile_rows,
            tile % self.col_tiles() * self.tile_cols,
        );
        let (rows, cols) = (self.tile_rows.min(m - row), self.tile_cols.min(n - col));
        let (a, b) = (a.from(row, 0), b.from(0, col));
        let at = out_at + row * n + col;
        if self.dots {
            for r in 0..rows {
                // SAFETY: tiles are disjoint.
                let out = unsafe { out.slice(at + r * n, cols) };
                dot_row(a.from(r, 0).data, b, k, out, write);
            }
            return;
        }
        let (packed, scratch) = scratch.split_at_mut(self.pack_len(cols));
        let b = if self.packs_b {
            pack::<A, B>(b, k, cols, packed)
        } else {
            pack_or_read::<A, B>(b, k, cols, packed)
        };
        let to = Target {
            out,
            at,
            row_stride: n,
        };
        // SAFETY: tiles are disjoint.
        unsafe { multiply::<A, A, O>((rows, k, cols), a, b, to, write, scratch) };
    }
}

vectorize! {
    /// `out[j] = a . b[:, j]` for columns of `b` that are contiguous.
    fn dot_row<A: Element, B: Element, O: Element>(
        a: &[A],
        b: Matrix<B>,
        k: usize,
        out: &mut [O],
        write: Write,
    ) {
        let a = &a[..k];
        for (j, out) in out.iter_mut().enumerate() {
            let dot = simd::dot_in::<F, A, A, B>(a, &b.data[j * b.col_stride..][..k]);
            *out = O::round(if write == Write::Assign { dot } else { out.widen() + dot });
        }
    }
}
