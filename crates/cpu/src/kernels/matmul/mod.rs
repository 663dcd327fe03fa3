//! Matrix products `out = a . b` or `out += a . b`, any strides, of f32, bf16 and f16 in any mix.
//!
//! Layouts: `a` `[.., m, k]`, `b` `[.., k, n]` with any strides; `out` dense `[.., m, n]`.
//! `a`'s type is that of the product: `b` is rounded to it, or widened, while it is packed, so that a mixed product
//! (16-bit activations with f32 weights, f32 activations with frozen 16-bit weights) makes no cast copy. Sums are f32,
//! rounded once if `out` is 16-bit.
//!
//! `b` is packed ([`pack`]), then the output is cut into tiles, one task each ([`multiply`]); where an operand can be read
//! in place it is, and a tile whose part of `b` no other needs packs it itself. Three ways, chosen by the type of the
//! product:
//! - f32: register tiles for each instruction set ([`micro`]);
//! - bf16 on a machine with AVX512-BF16: our kernel on pairs of numbers ([`pairs`]), up to twice as fast;
//! - bf16 elsewhere, and f16: widened while packing (exact), then as f32.
//!
//! One to four rows times a transposed `b`, a decoding step, is a set of dot products instead: it is bound by
//! reading `b` once.
//!
//! Numeric notes: one chain of f32 sums along `k` per block of at most 384 (all of `k` on pairs), whatever
//! the tiles; so the bits depend neither on the number of threads nor on caches.
//! Reference: [`crate::reference::matmul`].

mod micro;
mod pairs;
mod tile;

use tile::Left;
pub(crate) use tile::{
    Matrix, Packed, Target, multiply, multiply_len, pack, pack_len, pack_on_all_threads,
    pack_or_read, pack_or_read_len, store,
};

use candle_core::DType;

use crate::Write;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::pool::scratch;
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
    let plan = Plan::new(types, strides(a0), strides(b0), batches, (m, k, n));
    let [mut a_memory, mut b_memory] = plan.packed_lens().map(|len| len.map(scratch));
    let packed_a = a_memory
        .as_mut()
        .map(|memory| tile::pack_left_on_all_threads::<A>(a0, m, k, memory));
    let packed_b = b_memory
        .as_mut()
        .map(|memory| pack_on_all_threads::<A, B>(b0, k, n, memory));
    let tiles = plan.tiles();
    let shared = Shared::new(out);
    let work = par::product_work(&[batches, m, k, n]);
    par::for_each_with(
        batches * tiles,
        work,
        plan.scratch_len(),
        &|task, scratch| {
            let (index, tile) = (task / tiles, task % tiles);
            let a = match packed_a {
                Some(packed) => packed,
                None => Left::Matrix(matrix(a, batch, index)),
            };
            let b = match packed_b {
                Some(packed) => Right::Packed(packed),
                None => Right::Matrix(matrix(b, batch, index)),
            };
            plan.run_tile(tile, a, b, shared, index * m * n, write, scratch);
        },
    );
}

/// Elements of the pieces of scratch that [`batched`] takes for operands and output of these types; strides are (row,
/// column).
pub(crate) fn batched_scratch(
    types: [DType; 3],
    batches: usize,
    a_strides: (usize, usize),
    b_strides: (usize, usize),
    (m, k, n): (usize, usize, usize),
) -> Vec<usize> {
    let plan = Plan::new(types, a_strides, b_strides, batches, (m, k, n));
    let work = par::product_work(&[batches, m, k, n]);
    let of_tiles = par::scratch_len(batches * plan.tiles(), work, plan.scratch_len());
    let of_operands = plan.packed_lens().into_iter().flatten();
    of_operands.chain([of_tiles]).collect()
}

/// The right operand of a tile.
enum Right<'a, B> {
    /// All of it, packed.
    Packed(Packed<'a>),
    Matrix(Matrix<'a, B>),
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

/// How one product is cut into tiles. Which tile computes a number does not show in it.
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
    /// Whether operands are packed as a whole before there are tiles: several of them use each part of it.
    packs_a_first: bool,
    packs_b_first: bool,
    /// Whether else tiles pack their part of `b`; or they read it in place.
    packs_b: bool,
}

/// A product of at most so many rows reads `b` in place where it can: packing would take longer than it saves.
const FEW_ROWS: usize = 48;
/// A large tile: rows of `a` that fit the second-level cache, and columns enough that reading them is cheap.
const LARGE: (usize, usize) = (192, 256);
/// The smallest that products are cut into so that all threads have tiles.
const SMALL: (usize, usize) = (48, 64);
/// Tiles for each thread, at least, if there are so many of the smallest: some threads are slower than others.
const TILES_PER_THREAD: usize = 8;

/// Rows and columns of the tiles of an output `[m, n]`: the largest of at most `largest` of which `batches` such outputs have
/// `enough`, or the smallest. Of whole register tiles and panels for products in `c`.
pub(crate) fn tiles(
    c: DType,
    batches: usize,
    (m, n): (usize, usize),
    largest: (usize, usize),
    enough: usize,
) -> (usize, usize) {
    let (mut rows, mut cols) = largest;
    while batches * m.div_ceil(rows) * n.div_ceil(cols) < enough {
        if cols > SMALL.1 {
            cols /= 2;
        } else if rows > SMALL.0 {
            rows = (rows / 2).max(SMALL.0);
        } else {
            break;
        }
    }
    // Equal tiles: an uneven rest would be one thread's idle time.
    let equal =
        |all: usize, most: usize, unit| all.div_ceil(all.div_ceil(most)).next_multiple_of(unit);
    (
        equal(m, rows, micro::ROWS),
        equal(n, cols, tile::panel_cols(c)),
    )
}

/// How many tiles an output `[m, n]` has at most.
#[cfg(test)]
pub(crate) fn most_tiles(m: usize, n: usize) -> usize {
    m.div_ceil(SMALL.0) * n.div_ceil(SMALL.1)
}

impl Plan {
    fn new(
        types: [DType; 3],
        (a_row_stride, a_col_stride): (usize, usize),
        (b_row_stride, b_col_stride): (usize, usize),
        batches: usize,
        (m, k, n): (usize, usize, usize),
    ) -> Self {
        let [a, b, _] = types;
        let packs_b = m > FEW_ROWS || !tile::is_packed(a, b, b_col_stride, n);
        let dots = m <= 4 && b_row_stride == 1 && b_col_stride != 1 && a_col_stride == 1;
        let largest = if dots { (m, SMALL.1) } else { LARGE };
        let enough = TILES_PER_THREAD * rayon::current_num_threads();
        let (tile_rows, tile_cols) = tiles(a, batches, (m, n), largest, enough);
        Self {
            types,
            m,
            k,
            n,
            tile_rows,
            tile_cols,
            dots,
            a_col_stride,
            packs_a_first: !dots
                && batches == 1
                && n > tile_cols
                && tile::is_packed_first(a, a_row_stride, a_col_stride, k, n),
            packs_b_first: packs_b && !dots && batches == 1 && m > tile_rows,
            packs_b,
        }
    }

    fn col_tiles(&self) -> usize {
        self.n.div_ceil(self.tile_cols)
    }

    fn tiles(&self) -> usize {
        self.m.div_ceil(self.tile_rows) * self.col_tiles()
    }

    /// Scratch for all of `a` and of `b`, if they are packed as a whole.
    fn packed_lens(&self) -> [Option<usize>; 2] {
        let &Self { types, m, k, n, .. } = self;
        [
            self.packs_a_first.then(|| tile::left_len(m, k)),
            self.packs_b_first.then(|| pack_len(types[0], k, n)),
        ]
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

    /// Scratch of a tile for packing `cols` columns of `b`.
    fn pack_len(&self, cols: usize) -> usize {
        match self.packs_b && !self.packs_b_first {
            true => pack_len(self.types[0], self.k, cols),
            false => 0,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run_tile<A: Element, B: Element, O: Element>(
        &self,
        tile: usize,
        a: Left<A>,
        b: Right<B>,
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
        let a = a.from(row);
        let at = out_at + row * n + col;
        if let (true, Left::Matrix(a), Right::Matrix(b)) = (self.dots, a, &b) {
            for r in 0..rows {
                // SAFETY: tiles are disjoint.
                let out = unsafe { out.slice(at + r * n, cols) };
                dot_row(a.from(r, 0).data, b.from(0, col), k, out, write);
            }
            return;
        }
        let (packed, scratch) = scratch.split_at_mut(self.pack_len(cols));
        let b = match b {
            Right::Packed(b) => b.from(k, col),
            Right::Matrix(b) if self.packs_b => pack::<A, B>(b.from(0, col), k, cols, packed),
            Right::Matrix(b) => pack_or_read::<A, B>(b.from(0, col), k, cols, packed),
        };
        let to = Target {
            out,
            at,
            row_stride: n,
        };
        // SAFETY: tiles are disjoint.
        unsafe { tile::multiply_left::<A, A, O>((rows, k, cols), a, b, to, write, scratch) };
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
