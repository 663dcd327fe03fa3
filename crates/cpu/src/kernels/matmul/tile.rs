//! One product on this thread: packing of the right operand, then multiplication.
//!
//! `C` is the type that a product is computed in: operands are rounded to it where they are wider. Unless
//! the product is of bf16 pairs, a packed operand is dense f32, which holds numbers of any type exactly.
//!
//! gemm is fastest, and allocates nothing, on a column-major product whose left operand has unit stride along
//! the rows. Row-major `out` is that product transposed, `out^T = b^T . a^T`, so `b` needs unit stride along `n`, whole
//! vectors of it: otherwise it is packed, 3 % of the time at 1024 rows. An f32 `a` is read in place, whatever
//! its strides: gemm would copy one that is strided along `k`, except for narrow tiles; those are as fast here.

use candle_core::DType;
use gemm::Parallelism;

use super::pairs;
use crate::Write;
use crate::element::{Element, in_type};
use crate::par::Shared;
use crate::simd::{self, LANES, vectorize};

/// One strided matrix.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Rows of contiguous elements, `stride` apart.
    pub(crate) fn rows(data: &'a [T], stride: usize) -> Self {
        Self {
            data,
            row_stride: stride,
            col_stride: 1,
        }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self {
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    pub(crate) fn from(self, row: usize, col: usize) -> Self {
        let at = row * self.row_stride + col * self.col_stride;
        Self {
            data: self.data.get(at..).unwrap_or_default(), // empty if `k` is 0
            ..self
        }
    }

    /// Elements from the first to the last of `rows` x `cols`.
    pub(super) fn reach(&self, rows: usize, cols: usize) -> usize {
        if rows * cols == 0 {
            0
        } else {
            (rows - 1) * self.row_stride + (cols - 1) * self.col_stride + 1
        }
    }
}

/// Where a product goes: rows of contiguous elements, `row_stride` apart, inside an output shared with other tasks.
#[derive(Clone, Copy)]
pub(crate) struct Target<T> {
    pub out: Shared<T>,
    pub at: usize,
    pub row_stride: usize,
}

impl<T: Element> Target<T> {
    /// The whole of `out`.
    pub(crate) fn rows(out: &mut [T], row_stride: usize) -> Self {
        Self {
            out: Shared::new(out),
            at: 0,
            row_stride,
        }
    }

    /// The same place, if its elements are f32.
    fn f32s(self) -> Option<Target<f32>> {
        (T::DTYPE == DType::F32).then(|| Target {
            out: self.out.cast(),
            at: self.at,
            row_stride: self.row_stride,
        })
    }
}

/// A right operand ready for [`multiply`].
#[derive(Clone, Copy)]
pub(crate) enum Packed<'a> {
    /// Rows of whole vectors.
    Dense(Matrix<'a, f32>),
    /// Pairs of bf16 along `k`, see [`pairs`].
    Pairs(&'a [u32]),
}

/// Whether products in `c` go through f32 matrices.
pub(super) fn is_dense(c: DType) -> bool {
    !(c == DType::BF16 && simd::has_bf16_products())
}

/// Whether a right operand of type `b` needs no packing.
pub(super) fn is_packed(c: DType, b: DType, col_stride: usize, n: usize) -> bool {
    (c, b) == (DType::F32, DType::F32) && col_stride == 1 && n.is_multiple_of(LANES)
}

/// Whether a left operand of type `a` needs no packing.
pub(super) fn reads_in_place(c: DType, a: DType, col_stride: usize, k: usize) -> bool {
    match (c, a) {
        (DType::F32, DType::F32) => true,
        (DType::BF16, DType::BF16) => !is_dense(c) && pairs::is_packed(col_stride, k),
        _ => false,
    }
}

/// Scratch of [`pack`] where it does not read in place.
pub(crate) fn pack_len(c: DType, k: usize, n: usize) -> usize {
    let rows = if is_dense(c) { k } else { k.div_ceil(2) };
    rows * n.next_multiple_of(LANES)
}

/// The same for rows of contiguous elements of type `b`, 0 if they are read in place.
pub(crate) fn pack_rows_len(c: DType, b: DType, k: usize, n: usize) -> usize {
    match is_packed(c, b, 1, n) {
        true => 0,
        false => pack_len(c, k, n),
    }
}

/// Makes `b` `[k, n]` ready, in place if possible.
pub(crate) fn pack<'a, C: Element, B: Element>(
    b: Matrix<'a, B>,
    k: usize,
    n: usize,
    scratch: &'a mut [f32],
) -> Packed<'a> {
    let packed = is_packed(C::DTYPE, B::DTYPE, b.col_stride, n);
    if let Some(data) = B::as_f32s(b.data).filter(|_| packed) {
        return Packed::Dense(Matrix::rows(data, b.row_stride));
    }
    let scratch = &mut scratch[..pack_len(C::DTYPE, k, n)];
    if is_dense(C::DTYPE) {
        let stride = n.next_multiple_of(LANES);
        copy::<C, B>(b, k, n, scratch, stride);
        Packed::Dense(Matrix::rows(scratch, stride))
    } else {
        let scratch = pairs::words(scratch);
        pairs::pack(b, k, n, pairs::COLS, scratch);
        Packed::Pairs(scratch)
    }
}

/// Scratch of [`multiply`] for operands of types `a` and `o`, enough for any smaller shape too.
pub(crate) fn multiply_len(
    c: DType,
    a: DType,
    o: DType,
    (m, k, n): (usize, usize, usize),
) -> usize {
    if !is_dense(c) {
        return k.div_ceil(2) * m.next_multiple_of(LANES);
    }
    let a_len = match (c, a) {
        (DType::F32, DType::F32) => 0,
        _ => m * k.next_multiple_of(LANES),
    };
    let tile_len = match o {
        // For the columns after the last whole vector, which smaller tiles than this may have.
        DType::F32 => m * LANES,
        _ => m * n.next_multiple_of(LANES),
    };
    a_len + tile_len
}

/// `a` `[m, k]` times the packed `b` `[k, n]`.
///
/// # Safety
/// No other task touches the elements of `to` meanwhile.
pub(crate) unsafe fn multiply<C: Element, A: Element, O: Element>(
    (m, k, n): (usize, usize, usize),
    a: Matrix<A>,
    b: Packed,
    to: Target<O>,
    write: Write,
    scratch: &mut [f32],
) {
    if m * n == 0 {
        return;
    }
    let b = match b {
        Packed::Dense(b) => b,
        Packed::Pairs(b) => {
            // SAFETY: as for this function; pairs are packed only where this machine multiplies them.
            return unsafe { pairs::multiply((m, k, n), a, b, to, write, scratch) };
        }
    };
    let in_place = A::as_f32s(a.data).filter(|_| C::DTYPE == DType::F32);
    let (a, scratch) = match in_place {
        Some(data) => {
            let (row_stride, col_stride) = (a.row_stride, a.col_stride);
            let a = Matrix {
                data,
                row_stride,
                col_stride,
            };
            (a, scratch)
        }
        None => {
            let stride = k.next_multiple_of(LANES);
            let (dense, rest) = scratch.split_at_mut(m * stride);
            copy::<C, A>(a, m, k, dense, stride);
            (Matrix::rows(&*dense, stride), rest)
        }
    };
    // Whole vectors of an f32 output are written by gemm, anything else goes through a tile of scratch.
    let direct = match to.f32s() {
        Some(to) => {
            let whole = n - n % LANES;
            // SAFETY: as for this function.
            unsafe { gemm((m, k, whole), a, b, to, write) };
            whole
        }
        None => 0,
    };
    if direct < n {
        let (cols, padded) = (n - direct, (n - direct).next_multiple_of(LANES));
        let tile = &mut scratch[..m * padded];
        let to_tile = Target::rows(tile, padded);
        // SAFETY: the scratch is this task's own.
        unsafe { gemm((m, k, padded), a, b.from(0, direct), to_tile, Write::Assign) };
        for (r, tile) in tile.chunks_exact(padded).enumerate() {
            // SAFETY: as for this function.
            let out = unsafe { to.out.slice(to.at + r * to.row_stride + direct, cols) };
            store(&tile[..cols], out, write);
        }
    }
}

/// An f32 product. `b` must have unit stride along its rows of `n` elements, a multiple of 16; else gemm
/// allocates, but the result is right.
///
/// # Safety
/// No other task touches the elements of `to` meanwhile.
unsafe fn gemm(
    (m, k, n): (usize, usize, usize),
    a: Matrix<f32>,
    b: Matrix<f32>,
    to: Target<f32>,
    write: Write,
) {
    if n == 0 {
        return;
    }
    assert!(a.reach(m, k) <= a.data.len(), "gemm reads past a");
    assert!(b.reach(k, n) <= b.data.len(), "gemm reads past b");
    let out = to.out.pointer(to.at, (m - 1) * to.row_stride + n);
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

/// Tiles up to this width let gemm read an operand that is strided along `k` in place: twice the height
/// of its register tile.
pub(crate) fn narrow_cols() -> usize {
    match simd::isa() {
        "avx2" => 32,
        _ => 128,
    }
}

vectorize! {
    /// Copies `b` `[rows, cols]`, in `C`, into dense rows of `out_stride`, the rest of each row zero.
    fn copy<C: Element, T: Element>(
        b: Matrix<T>,
        rows: usize,
        cols: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        if b.col_stride == 1 {
            for row in 0..rows {
                let (to, padding) = out[row * out_stride..][..out_stride].split_at_mut(cols);
                padding.fill(0.0);
                let from = &b.data[row * b.row_stride..][..cols];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = in_type::<C, T>(*from);
                }
            }
            return;
        }
        // Both sides of a 16 x 16 block stay in the L1 cache.
        for row in (0..rows).step_by(LANES) {
            let block_rows = LANES.min(rows - row);
            for col in (0..out_stride).step_by(LANES) {
                let mut block = [[0.0; LANES]; LANES]; // [col][row]
                let block_cols = LANES.min(cols.saturating_sub(col));
                for (c, block) in block[..block_cols].iter_mut().enumerate() {
                    let from = b.from(row, col + c);
                    if b.row_stride == 1 && block_rows == LANES {
                        for (to, from) in block.iter_mut().zip(&from.data[..LANES]) {
                            *to = in_type::<C, T>(*from);
                        }
                    } else {
                        gather::<C, T>(from, &mut block[..block_rows]);
                    }
                }
                scatter(&block, block_rows, &mut out[row * out_stride + col..], out_stride);
            }
        }
    }
}

/// The first elements of a column, one by one: edges and unusual strides, not worth vector code.
#[inline(never)]
fn gather<C: Element, T: Element>(column: Matrix<T>, out: &mut [f32]) {
    for (r, to) in out.iter_mut().enumerate() {
        *to = in_type::<C, T>(column.data[r * column.row_stride]);
    }
}

vectorize! {
    /// Writes the first `rows` rows of the transpose of `block`, `stride` apart.
    pub(super) fn scatter<N: Copy>(
        block: &[[N; LANES]; LANES],
        rows: usize,
        out: &mut [N],
        stride: usize,
    ) {
        for r in 0..rows {
            let out = &mut out[r * stride..][..LANES];
            for c in 0..LANES {
                out[c] = block[c][r];
            }
        }
    }
}

vectorize! {
    /// One row of results on its way out.
    pub(crate) fn store<O: Element>(from: &[f32], out: &mut [O], write: Write) {
        match write {
            Write::Assign => {
                for (out, x) in out.iter_mut().zip(from) {
                    *out = O::round(*x);
                }
            }
            Write::Accumulate => {
                for (out, x) in out.iter_mut().zip(from) {
                    *out = O::round(out.widen() + x);
                }
            }
        }
    }
}
