//! Matrix products `out = a . b` or `out += a . b`, any strides, through the `gemm` crate.
//!
//! Layouts: `a` `[.., m, k]`, `b` `[.., k, n]` with any strides; `out` dense `[.., m, n]`.
//! gemm is fastest, and allocates nothing, on a column-major product whose left operand has unit stride along
//! the rows. Row-major `out` is that product transposed, `out^T = b^T . a^T`, so:
//! - `b` with unit stride along `n` (activations, weights in a backward pass) is read in place; otherwise
//!   (`x . W^T`) each task first transposes its columns of `b` into scratch, 3 % of the time at 1024 rows;
//! - `a` is read in place, whatever its strides. gemm would copy a right operand that is strided along `k`, except for
//!   narrow tiles; those are as fast here, so tiles are narrow then (`dy^T . x`);
//! - the last `n % 16` columns go through zero-padded scratch: the product of one more tile, 16 wide.
//!
//! One to four rows times a transposed `b`, a decoding step, is a set of dot products instead: it is bound by
//! reading `b` once.
//!
//! Numeric notes: f32, one fused chain along `k` per block of at least 512; tiles depend on the shape alone, and
//! gemm runs single-threaded inside a tile, so the bits do not depend on the number of threads.
//! On NEON and on machines without AVX2 gemm packs operands, allocating on every call.
//! Reference: [`crate::reference::matmul`].

use gemm::Parallelism;

use crate::Write;
use crate::par::{self, Shared};
use crate::simd::{self, vectorize};

/// gemm's register tile is this wide on AVX-512, and its whole-vector condition holds for all narrower ones.
const LANES: usize = 16;

/// A strided operand: `strides` are those of all its dims, batch dims first.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub data: &'a [f32],
    pub strides: &'a [usize],
}

/// One strided matrix.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub col_stride: usize,
}

/// Products of the matrices of `a` and `b`, batch by batch.
pub(crate) fn batched(
    batch: &[usize],
    a: Operand,
    b: Operand,
    (m, k, n): (usize, usize, usize),
    out: &mut [f32],
    write: Write,
) {
    let batches: usize = batch.iter().product();
    if out.is_empty() {
        return;
    }
    let (a0, b0) = (matrix(a, batch, 0), matrix(b, batch, 0));
    let plan = Plan::new(strides(a0), strides(b0), (m, k, n));
    let tiles = plan.tiles();
    let shared = Shared::new(out);
    let work = par::product_work(&[batches, m, k, n]);
    par::for_each_with(
        batches * tiles,
        work,
        plan.scratch_len(),
        |task, scratch| {
            let (index, tile) = (task / tiles, task % tiles);
            let (a, b) = (matrix(a, batch, index), matrix(b, batch, index));
            plan.run_tile(tile, a, b, shared, index * m * n, write, scratch);
        },
    );
}

/// Elements of scratch that [`batched`] takes; strides are (row, column).
pub(crate) fn batched_scratch(
    batches: usize,
    a_strides: (usize, usize),
    b_strides: (usize, usize),
    (m, k, n): (usize, usize, usize),
) -> usize {
    let plan = Plan::new(a_strides, b_strides, (m, k, n));
    let work = par::product_work(&[batches, m, k, n]);
    par::scratch_len(batches * plan.tiles(), work, plan.scratch_len())
}

fn strides(matrix: Matrix) -> (usize, usize) {
    (matrix.row_stride, matrix.col_stride)
}

/// Matrix `index` of a batch.
fn matrix<'a>(operand: Operand<'a>, batch: &[usize], mut index: usize) -> Matrix<'a> {
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

/// How one product is cut into tiles: by shape and strides alone.
#[derive(Clone, Copy)]
struct Plan {
    m: usize,
    k: usize,
    n: usize,
    tile_rows: usize,
    tile_cols: usize,
    /// Whether tiles are dot products.
    dots: bool,
    /// Whether `b` is transposed into scratch.
    copy_b: bool,
}

impl Plan {
    fn new(
        (_, a_col_stride): (usize, usize),
        (b_row_stride, b_col_stride): (usize, usize),
        (m, k, n): (usize, usize, usize),
    ) -> Self {
        let copy_b = b_col_stride != 1;
        let dots = m <= 4 && b_row_stride == 1 && copy_b && a_col_stride == 1;
        let (tile_rows, tile_cols) = if dots {
            (m, 64)
        } else if copy_b {
            // All rows at once, so that each column of `b` is transposed once.
            (m.clamp(1, 4096), 64)
        } else if a_col_stride != 1 {
            (384, narrow_cols())
        } else {
            (192, 256)
        };
        let tile_cols = if a_col_stride == 1 {
            tile_cols
        } else {
            tile_cols.min(narrow_cols())
        };
        // Equal tiles of whole register tiles (6 rows): an uneven rest would be one thread's idle time.
        let tile_rows = m.div_ceil(m.div_ceil(tile_rows)).next_multiple_of(6);
        Self {
            m,
            k,
            n,
            tile_rows,
            tile_cols,
            dots,
            copy_b,
        }
    }

    fn col_tiles(&self) -> usize {
        let whole = if self.dots {
            self.n
        } else {
            self.n - self.n % LANES
        };
        whole.div_ceil(self.tile_cols) + usize::from(whole < self.n)
    }

    fn tiles(&self) -> usize {
        self.m.div_ceil(self.tile_rows) * self.col_tiles()
    }

    /// What a tile needs: its columns of `b`, and the product of the last columns.
    fn scratch_len(&self) -> usize {
        if self.dots {
            0
        } else if self.copy_b {
            self.k * self.tile_cols.max(LANES) + self.tile_rows * LANES
        } else if self.n.is_multiple_of(LANES) {
            0
        } else {
            (self.k + self.tile_rows) * LANES
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run_tile(
        &self,
        tile: usize,
        a: Matrix,
        b: Matrix,
        out: Shared<f32>,
        out_at: usize,
        write: Write,
        scratch: &mut [f32],
    ) {
        let &Self {
            m,
            k,
            n,
            tile_rows,
            tile_cols,
            ..
        } = self;
        let (tile_row, tile_col) = (tile / self.col_tiles(), tile % self.col_tiles());
        let row = tile_row * tile_rows;
        let rows = tile_rows.min(m - row);
        let whole = n - n % LANES;
        let (col, cols) = if self.dots {
            (
                tile_col * tile_cols,
                tile_cols.min(n - tile_col * tile_cols),
            )
        } else if tile_col * tile_cols < whole {
            (
                tile_col * tile_cols,
                tile_cols.min(whole - tile_col * tile_cols),
            )
        } else {
            (whole, n - whole)
        };
        let a = a.from(row, 0);
        let b = b.from(0, col);
        // SAFETY: tiles are disjoint, and rows of the output are cut from it inside of bounds.
        let out_row = |r: usize| unsafe { out.slice(out_at + (row + r) * n + col, cols) };
        if self.dots {
            for r in 0..rows {
                dot_row(a.from(r, 0).data, b, k, out_row(r), write);
            }
            return;
        }
        let padded = cols.next_multiple_of(LANES);
        let (b_scratch, tile) = if self.copy_b || padded > cols {
            scratch.split_at_mut(k * padded)
        } else {
            (Default::default(), scratch)
        };
        let b = if b_scratch.is_empty() {
            b
        } else {
            copy(b, k, cols, b_scratch, padded);
            Matrix {
                data: b_scratch,
                row_stride: padded,
                col_stride: 1,
            }
        };
        if padded == cols {
            let to = Target {
                out,
                at: out_at + row * n + col,
                row_stride: n,
            };
            // SAFETY: tiles are disjoint.
            unsafe { gemm((rows, k, cols), a, b, to, write) };
        } else {
            let tile = &mut tile[..rows * padded];
            let to = Target {
                out: Shared::new(tile),
                at: 0,
                row_stride: padded,
            };
            // SAFETY: the scratch is this task's own.
            unsafe { gemm((rows, k, padded), a, b, to, Write::Assign) };
            for (r, tile) in tile.chunks_exact(padded).enumerate() {
                let out = out_row(r);
                for (out, x) in out.iter_mut().zip(tile) {
                    *out = if write == Write::Assign { *x } else { *out + x };
                }
            }
        }
    }
}

impl<'a> Matrix<'a> {
    fn from(self, row: usize, col: usize) -> Self {
        let at = row * self.row_stride + col * self.col_stride;
        Self {
            data: self.data.get(at..).unwrap_or_default(),
            ..self
        } // empty if `k` is 0
    }
}

/// Tiles up to this width let gemm read an operand that is strided along `k` in place: twice the height
/// of its register tile.
pub(crate) fn narrow_cols() -> usize {
    match simd::isa() {
        "avx2" => 32,
        _ => 128,
    }
}

/// Where a product goes: rows of contiguous elements, `row_stride` apart, inside an output shared with other tasks.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub out: Shared<f32>,
    pub at: usize,
    pub row_stride: usize,
}

/// One product on this thread. `b` must have unit stride along its rows of `n` elements, a multiple of 16; else gemm
/// allocates, but the result is right.
///
/// # Safety
/// No other task touches the elements of `to` meanwhile.
pub(crate) unsafe fn gemm(
    (m, k, n): (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    to: Target,
    write: Write,
) {
    if m * n == 0 {
        return;
    }
    let reach = |rows: usize, cols: usize, row_stride: usize, col_stride: usize| {
        if rows * cols == 0 {
            0
        } else {
            (rows - 1) * row_stride + (cols - 1) * col_stride + 1
        }
    };
    assert!(
        reach(m, k, a.row_stride, a.col_stride) <= a.data.len(),
        "gemm reads past a"
    );
    assert!(
        reach(k, n, b.row_stride, b.col_stride) <= b.data.len(),
        "gemm reads past b"
    );
    let out = to.out.pointer(to.at, reach(m, n, to.row_stride, 1));
    let tile_cols = if a.col_stride == 1 { n } else { narrow_cols() };
    for col in (0..n).step_by(tile_cols) {
        let b = b.from(0, col);
        // SAFETY: by the assertions every element that gemm reaches is inside its slice, and the caller keeps
        // others from `out`. The product is the transposed one, so m and n, rows and columns swap.
        unsafe {
            gemm::gemm(
                tile_cols.min(n - col),
                m,
                k,
                out.add(col),
                to.row_stride as isize,
                1,
                write == Write::Accumulate,
                b.data.as_ptr(),
                b.row_stride as isize,
                b.col_stride as isize,
                a.data.as_ptr(),
                a.row_stride as isize,
                a.col_stride as isize,
                1.0f32,
                1.0f32,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

vectorize! {
    /// Copies `b` `[rows, cols]` into dense rows of `out_stride`, the rest of each row zero.
    pub(crate) fn copy(b: Matrix, rows: usize, cols: usize, out: &mut [f32], out_stride: usize) {
        // Both sides of a 16 x 16 block stay in the L1 cache.
        for row in (0..rows).step_by(LANES) {
            for col in (0..out_stride).step_by(LANES) {
                let block_rows = LANES.min(rows - row);
                let block_cols = LANES.min(cols.saturating_sub(col));
                let mut block = [[0.0; LANES]; LANES]; // [col][row]
                for (c, block) in block[..block_cols].iter_mut().enumerate() {
                    let from = &b.data[row * b.row_stride + (col + c) * b.col_stride..];
                    if b.row_stride == 1 && block_rows == LANES {
                        block.copy_from_slice(&from[..LANES]);
                    } else {
                        for (r, to) in block[..block_rows].iter_mut().enumerate() {
                            *to = from[r * b.row_stride];
                        }
                    }
                }
                for r in 0..block_rows {
                    let out = &mut out[(row + r) * out_stride + col..][..LANES];
                    for c in 0..LANES {
                        out[c] = block[c][r];
                    }
                }
            }
        }
    }
}

vectorize! {
    /// `out[j] = a . b[:, j]` for columns of `b` that are contiguous.
    fn dot_row(a: &[f32], b: Matrix, k: usize, out: &mut [f32], write: Write) {
        let a = &a[..k];
        for (j, out) in out.iter_mut().enumerate() {
            let dot = simd::dot(a, &b.data[j * b.col_stride..][..k]);
            *out = if write == Write::Assign { dot } else { *out + dot };
        }
    }
}
