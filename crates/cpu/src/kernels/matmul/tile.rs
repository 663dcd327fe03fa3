//! One product on this thread: packing of the right operand, then multiplication.
//!
//! `C` is the type that a product is computed in: operands are rounded to it where they are wider. Unless
//! the product is of bf16 pairs, a packed operand is f32, which holds numbers of any type exactly: 16-bit operands are
//! widened while they are packed.
//!
//! `b` is packed into panels of columns, each `[k, cols]`, or read in place where that is as good: rows of whole vectors
//! that few rows of `a` are multiplied with. `a` is packed block by block along `k`, but for f32 rows, which are read in
//! place, and narrow products. The rest is in [`micro`] and [`pairs`].

use candle_core::DType;

use super::{micro, pairs};
use crate::element::{Element, in_type};
use crate::par::{self, Shared};
use crate::simd::{LANES, vectorize};
use crate::{Isa, Write, isa};

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
    /// Rows of whole vectors, where they are.
    Rows(Matrix<'a, f32>),
    /// Panels of at most [`micro::panel_cols`] columns, of whole vectors.
    Panels(&'a [f32]),
    /// Pairs of bf16 along `k`, see [`pairs`].
    Pairs(&'a [u32]),
}

impl Packed<'_> {
    /// Column `col` of an operand `[k, n]` and those after it; `col` begins a panel.
    pub(super) fn from(self, k: usize, col: usize) -> Self {
        match self {
            Self::Rows(b) => Self::Rows(b.from(0, col)),
            Self::Panels(data) => Self::Panels(&data[k * col..]),
            Self::Pairs(data) => Self::Pairs(&data[k.div_ceil(2) * col..]),
        }
    }

    /// From row `first` on, column `col` and those after it in its panel; returns how many columns that may be.
    fn columns(self, k: usize, n: usize, first: usize, col: usize) -> (micro::Columns, usize) {
        let panel_cols = micro::panel_cols();
        let (data, k_step, at, cols) = match self {
            Self::Rows(b) => (b.data, b.row_stride, first * b.row_stride + col, panel_cols),
            Self::Panels(data) => {
                let panel = col / panel_cols * panel_cols;
                let width = panel_cols.min(n.next_multiple_of(LANES) - panel);
                let at = k * panel + first * width + (col - panel);
                (data, width, at, panel + width - col)
            }
            Self::Pairs(_) => unreachable!("pairs have a product of their own"),
        };
        let start = data.as_ptr().wrapping_add(at);
        (micro::Columns { start, k_step }, cols)
    }

    /// Whether `[k, n]` numbers, in whole vectors, are there.
    fn holds(self, k: usize, n: usize) -> bool {
        let padded = n.next_multiple_of(LANES);
        match self {
            Self::Rows(b) => b.reach(k, padded) <= b.data.len(),
            Self::Panels(data) => k * padded <= data.len(),
            Self::Pairs(data) => k.div_ceil(2) * padded <= data.len(),
        }
    }
}

/// Rows that are packed as one piece of work, at most.
const PIECE_ROWS: usize = 16;
/// Rows of `k` of a panel of columns that are packed together: blocks that stay in the L1 cache.
const PANEL_PIECE: usize = 2 * LANES;
/// A product of at most so many columns reads an f32 left operand in place, whatever its strides.
const NARROW: usize = 128;

/// Whether products in `c` go through f32 matrices.
pub(super) fn is_dense(c: DType) -> bool {
    !(c == DType::BF16 && isa::in_use() == Isa::Avx512Bf16)
}

/// Whether a right operand of type `b` needs no packing.
pub(super) fn is_packed(c: DType, b: DType, col_stride: usize, n: usize) -> bool {
    (c, b) == (DType::F32, DType::F32) && col_stride == 1 && n.is_multiple_of(LANES)
}

/// Whether a left operand of type `a` needs no packing for a product of `n` columns.
pub(super) fn reads_in_place(c: DType, a: DType, col_stride: usize, k: usize, n: usize) -> bool {
    match (c, a) {
        (DType::F32, DType::F32) => col_stride == 1 || n <= NARROW,
        (DType::BF16, DType::BF16) => !is_dense(c) && pairs::is_packed(col_stride, k),
        _ => false,
    }
}

/// Scratch of [`pack`].
pub(crate) fn pack_len(c: DType, k: usize, n: usize) -> usize {
    let rows = if is_dense(c) { k } else { k.div_ceil(2) };
    rows * n.next_multiple_of(LANES)
}

/// How many of `rows` rows, of `len` elements each, are packed as one piece of work.
fn piece_rows(rows: usize, len: usize) -> usize {
    let least = par::MIN_GRAIN.div_ceil(len.max(1)).min(PIECE_ROWS);
    (rows / par::enough_tasks()).clamp(least, PIECE_ROWS)
}

/// Packs `b` `[k, n]`.
pub(crate) fn pack<'a, C: Element, B: Element>(
    b: Matrix<B>,
    k: usize,
    n: usize,
    scratch: &'a mut [f32],
) -> Packed<'a> {
    let scratch = &mut scratch[..pack_len(C::DTYPE, k, n)];
    if !is_dense(C::DTYPE) {
        let scratch = pairs::words(scratch);
        pairs::pack(b, k, n, pairs::COLS, scratch);
        return Packed::Pairs(scratch);
    }
    let panel_cols = micro::panel_cols();
    if b.col_stride == 1 {
        rows_to_panels::<C, B>(b, 0..k, k, n, Shared::new(scratch));
        return Packed::Panels(scratch);
    }
    for col in (0..n).step_by(panel_cols) {
        let cols = panel_cols.min(n - col);
        let padded = cols.next_multiple_of(LANES);
        let panel = &mut scratch[k * col..][..k * padded];
        copy::<C, B>(b.from(0, col), k, cols, panel, padded);
    }
    Packed::Panels(scratch)
}

/// [`pack`] on all threads.
pub(crate) fn pack_on_all_threads<'a, C: Element, B: Element>(
    b: Matrix<B>,
    k: usize,
    n: usize,
    scratch: &'a mut [f32],
) -> Packed<'a> {
    let scratch = &mut scratch[..pack_len(C::DTYPE, k, n)];
    let out = Shared::new(scratch);
    if is_dense(C::DTYPE) && b.col_stride == 1 {
        let rows = piece_rows(k, n);
        par::for_each(k.div_ceil(rows), k * n, &|piece| {
            let first = piece * rows;
            rows_to_panels::<C, B>(b, first..k.min(first + rows), k, n, out);
        });
    } else {
        let cols = panel_cols(C::DTYPE);
        let panels = n.div_ceil(cols);
        // Where there are few panels, each in parts along `k`.
        let parts = par::enough_tasks().div_ceil(panels.max(1));
        let rows = (k / parts / PANEL_PIECE * PANEL_PIECE).max(PANEL_PIECE);
        let parts = k.div_ceil(rows);
        par::for_each(panels * parts, k * n, &|piece| {
            let (col, first) = (piece / parts * cols, piece % parts * rows);
            let (cols, rows) = (cols.min(n - col), rows.min(k - first));
            let len = |rows, cols| pack_len(C::DTYPE, rows, cols);
            let at = len(k, col) + len(first, cols);
            // SAFETY: parts of panels do not overlap.
            let part = unsafe { out.slice(at, len(rows, cols)) };
            pack::<C, B>(b.from(first, col), rows, cols, part);
        });
    }
    if is_dense(C::DTYPE) {
        Packed::Panels(scratch)
    } else {
        Packed::Pairs(pairs::words(scratch))
    }
}

/// Columns of a panel of a right operand that is packed for products in `c`.
pub(super) fn panel_cols(c: DType) -> usize {
    if is_dense(c) {
        micro::panel_cols()
    } else {
        pairs::COLS
    }
}

/// Scratch of [`pack_or_read`] for rows of contiguous elements of type `b`: 0 if they are read in place.
pub(crate) fn pack_or_read_len(c: DType, b: DType, k: usize, n: usize) -> usize {
    if is_packed(c, b, 1, n) {
        0
    } else {
        pack_len(c, k, n)
    }
}

/// Makes `b` `[k, n]` ready, in place if possible: for products of few rows.
pub(crate) fn pack_or_read<'a, C: Element, B: Element>(
    b: Matrix<'a, B>,
    k: usize,
    n: usize,
    scratch: &'a mut [f32],
) -> Packed<'a> {
    match B::as_f32s(b.data) {
        Some(data) if is_packed(C::DTYPE, B::DTYPE, b.col_stride, n) => {
            Packed::Rows(Matrix::rows(data, b.row_stride))
        }
        _ => pack::<C, B>(b, k, n, scratch),
    }
}

/// Scratch of [`multiply`] for operands of types `a` and `o`, enough for any smaller shape too.
pub(crate) fn multiply_len(
    c: DType,
    a: DType,
    o: DType,
    a_col_stride: usize,
    (m, k, n): (usize, usize, usize),
) -> usize {
    if !is_dense(c) {
        return k.div_ceil(2) * m.next_multiple_of(LANES);
    }
    let a_len = if reads_in_place(c, a, a_col_stride, k, n) {
        0
    } else {
        block_pack_len(m, k)
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
    shape: (usize, usize, usize),
    a: Matrix<A>,
    b: Packed,
    to: Target<O>,
    write: Write,
    scratch: &mut [f32],
) {
    // SAFETY: as for this function.
    unsafe { multiply_left::<C, A, O>(shape, Left::Matrix(a), b, to, write, scratch) };
}

/// [`multiply`] for any left operand.
///
/// # Safety
/// As for [`multiply`].
pub(super) unsafe fn multiply_left<C: Element, A: Element, O: Element>(
    (m, k, n): (usize, usize, usize),
    a: Left<A>,
    b: Packed,
    to: Target<O>,
    write: Write,
    scratch: &mut [f32],
) {
    if m * n == 0 {
        return;
    }
    assert!(b.holds(k, n), "the product reads past b");
    assert!(a.holds(m, k), "the product reads past a");
    let a = match a {
        Left::Matrix(a) => {
            if let Packed::Pairs(b) = b {
                // SAFETY: as for this function; pairs are packed only where this machine multiplies them.
                return unsafe { pairs::multiply((m, k, n), a, b, to, write, scratch) };
            }
            let in_place = reads_in_place(C::DTYPE, A::DTYPE, a.col_stride, k, n);
            match A::as_f32s(a.data) {
                Some(data) if in_place => Left::Rows(Matrix {
                    data,
                    row_stride: a.row_stride,
                    col_stride: a.col_stride,
                }),
                _ => Left::Matrix(a),
            }
        }
        other => other,
    };
    let a_len = match a {
        Left::Matrix(_) => block_pack_len(m, k),
        Left::Rows(_) | Left::Tiles(_) => 0,
    };
    let (packed, scratch) = scratch.split_at_mut(a_len);
    // Whole vectors of an f32 output are written where they belong, anything else goes through a tile of scratch.
    let direct = to.f32s();
    let whole = direct.map_or(0, |_| n - n % LANES);
    let padded = (n - whole).next_multiple_of(LANES);
    let tile = &mut scratch[..m * padded];
    for (first, len) in micro::blocks(k) {
        let left = match a {
            Left::Matrix(a) => Block::pack::<C, A>(a.from(0, first), m, len, packed),
            Left::Rows(a) => Block::Rows(a.from(0, first)),
            Left::Tiles(a) => Block::Tiles {
                data: &a.data[a.rows * first + a.first * len..],
                len,
            },
        };
        let later = first > 0;
        let columns = |range: std::ops::Range<usize>, out: micro::Out| {
            let mut col = range.start;
            while col < range.end {
                let (b, cols) = b.columns(k, n, first, col);
                let cols = cols.min(range.end - col);
                let out = micro::Out {
                    start: out.start.wrapping_add(col - range.start),
                    ..out
                };
                // SAFETY: operands hold this block by the assertions; `out` has `m` rows of the range's columns, and
                // is this task's own.
                unsafe { micro::panel((m, len, cols / LANES), |row| left.rows(row), b, out) };
                col += cols;
            }
        };
        if let (Some(to), true) = (direct, whole > 0) {
            let start = to.out.pointer(to.at, (m - 1) * to.row_stride + whole);
            let adds = later || write == Write::Accumulate;
            columns(
                0..whole,
                micro::Out {
                    start,
                    row_step: to.row_stride,
                    adds,
                },
            );
        }
        if padded > 0 {
            let start = tile.as_mut_ptr();
            columns(
                whole..whole + padded,
                micro::Out {
                    start,
                    row_step: padded,
                    adds: later,
                },
            );
        }
    }
    if padded > 0 {
        for (r, tile) in tile.chunks_exact(padded).enumerate() {
            // SAFETY: as for this function.
            let out = unsafe { to.out.slice(to.at + r * to.row_stride + whole, n - whole) };
            store(&tile[..n - whole], out, write);
        }
    }
}

/// Scratch of [`Block::pack`], for any block along `k`.
fn block_pack_len(m: usize, k: usize) -> usize {
    m.next_multiple_of(micro::ROWS) * micro::max_block_len(k).next_multiple_of(LANES)
}

/// A left operand.
#[derive(Clone, Copy)]
pub(super) enum Left<'a, A> {
    /// Packed block by block, unless [`reads_in_place`].
    Matrix(Matrix<'a, A>),
    /// In f32, and read in place.
    Rows(Matrix<'a, f32>),
    Tiles(Tiles<'a>),
}

impl<A> Left<'_, A> {
    /// From row `row` on, the first of a register tile.
    pub(super) fn from(self, row: usize) -> Self {
        match self {
            Self::Matrix(a) => Self::Matrix(a.from(row, 0)),
            Self::Rows(a) => Self::Rows(a.from(row, 0)),
            Self::Tiles(a) => Self::Tiles(Tiles {
                first: a.first + row,
                ..a
            }),
        }
    }

    /// Whether `[m, k]` numbers are there.
    fn holds(self, m: usize, k: usize) -> bool {
        match self {
            Self::Matrix(a) => a.reach(m, k) <= a.data.len(),
            Self::Rows(a) => a.reach(m, k) <= a.data.len(),
            Self::Tiles(a) => a.first + m <= a.rows && a.rows * k <= a.data.len(),
        }
    }
}

/// A left operand in f32: blocks along `k`, of each the rows of one register tile after the other, `[len, micro::ROWS]`.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    data: &'a [f32],
    /// Rows of a block, whole register tiles.
    rows: usize,
    /// The first that is meant.
    first: usize,
}

/// Whether [`pack_left_on_all_threads`] can pack a left operand in its own type for a product of `n` columns: one that
/// would have to be packed, and whose rows or columns are contiguous.
pub(super) fn is_packed_first(
    a: DType,
    row_stride: usize,
    col_stride: usize,
    k: usize,
    n: usize,
) -> bool {
    is_dense(a) && !reads_in_place(a, a, col_stride, k, n) && (row_stride == 1 || col_stride == 1)
}

/// Scratch of [`pack_left_on_all_threads`].
pub(super) fn left_len(m: usize, k: usize) -> usize {
    m.next_multiple_of(micro::ROWS) * k
}

/// Packs all of `a` `[m, k]` on all threads: into tiles if it is transposed, else into rows.
pub(super) fn pack_left_on_all_threads<'a, A: Element>(
    a: Matrix<A>,
    m: usize,
    k: usize,
    scratch: &'a mut [f32],
) -> Left<'a, A> {
    let scratch = &mut scratch[..left_len(m, k)];
    let out = Shared::new(scratch);
    if a.row_stride != 1 {
        let piece_rows = piece_rows(m, k);
        par::for_each(m.div_ceil(piece_rows), m * k, &|piece| {
            let row = piece * piece_rows;
            let rows = piece_rows.min(m - row);
            // SAFETY: pieces do not overlap.
            let out = unsafe { out.slice(row * k, rows * k) };
            copy::<A, A>(a.from(row, 0), rows, k, out, k);
        });
        return Left::Rows(Matrix::rows(scratch, k));
    }
    let rows = m.next_multiple_of(micro::ROWS);
    let piece_rows = piece_rows(k, m);
    par::for_each(k.div_ceil(piece_rows), m * k, &|piece| {
        let pieces = piece * piece_rows..k.min((piece + 1) * piece_rows);
        for (first, len) in micro::blocks(k) {
            for p in pieces.start.max(first)..pieces.end.min(first + len) {
                let from = &a.data[p * a.col_stride..][..m];
                row_to_tiles::<A, A>(from, rows * first + (p - first) * micro::ROWS, len, out);
            }
        }
    });
    Left::Tiles(Tiles {
        data: scratch,
        rows,
        first: 0,
    })
}

/// One block along `k` of a left operand.
#[derive(Clone, Copy)]
enum Block<'a> {
    /// Rows of f32, where they are or in scratch.
    Rows(Matrix<'a, f32>),
    /// Rows of register tiles, each `[len, micro::ROWS]`.
    Tiles { data: &'a [f32], len: usize },
}

impl<'a> Block<'a> {
    /// `a` `[m, len]`, in `C`.
    fn pack<C: Element, A: Element>(
        a: Matrix<A>,
        m: usize,
        len: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        if a.row_stride != 1 {
            let stride = len.next_multiple_of(LANES);
            copy::<C, A>(a, m, len, scratch, stride);
            return Self::Rows(Matrix::rows(scratch, stride));
        }
        // A transposed matrix: contiguous along its rows already.
        let out = Shared::new(scratch);
        for p in 0..len {
            let from = &a.data[p * a.col_stride..][..m];
            row_to_tiles::<C, A>(from, p * micro::ROWS, len, out);
        }
        Self::Tiles { data: scratch, len }
    }

    /// From `row` on, a register tile's rows.
    fn rows(self, row: usize) -> micro::Rows {
        match self {
            Self::Rows(a) => micro::Rows {
                start: a.data.as_ptr().wrapping_add(row * a.row_stride),
                row_step: a.row_stride,
                k_step: a.col_stride,
            },
            Self::Tiles { data, len } => micro::Rows {
                start: data.as_ptr().wrapping_add(row * len),
                row_step: 1,
                k_step: micro::ROWS,
            },
        }
    }
}

/// Cuts some rows of `b` `[k, n]` of contiguous elements, in `C`, into the panels of [`pack`]. Row by row, as they lie in
/// memory; no other task has the same rows.
fn rows_to_panels<C: Element, T: Element>(
    b: Matrix<T>,
    rows: std::ops::Range<usize>,
    k: usize,
    n: usize,
    out: Shared<f32>,
) {
    for row in rows {
        let from = &b.data[row * b.row_stride..][..n];
        row_to_panels::<C, T>(from, row, k, micro::panel_cols(), out);
    }
}

vectorize! {
    fn row_to_panels<C: Element, T: Element>(
        from: &[T],
        row: usize,
        k: usize,
        panel_cols: usize,
        out: Shared<f32>,
    ) {
        let padded = from.len().next_multiple_of(LANES);
        let (whole, rest) = from.as_chunks::<LANES>();
        let place = |vector: usize| {
            let panel = vector * LANES / panel_cols * panel_cols;
            let width = panel_cols.min(padded - panel);
            // SAFETY: each row has places of its own.
            unsafe { out.slice(panel * k + row * width + (vector * LANES - panel), LANES) }
        };
        for (vector, from) in whole.iter().enumerate() {
            for (to, from) in place(vector).iter_mut().zip(from) {
                *to = in_type::<C, T>(*from);
            }
        }
        if !rest.is_empty() {
            let (to, padding) = place(whole.len()).split_at_mut(rest.len());
            padding.fill(0.0);
            for (to, from) in to.iter_mut().zip(rest) {
                *to = in_type::<C, T>(*from);
            }
        }
    }
}

vectorize! {
    /// Deals one row of `k` of a transposed left operand, in `C`, to its register tiles: `at` is the place in the first,
    /// which is `len` rows of `k` long. No other task has the same row.
    fn row_to_tiles<C: Element, T: Element>(from: &[T], at: usize, len: usize, out: Shared<f32>) {
        const TILES: usize = 8; // whole vectors
        let mut wide = [0.0; TILES * micro::ROWS];
        for (piece, from) in from.chunks(TILES * micro::ROWS).enumerate() {
            for (to, from) in wide.iter_mut().zip(from) {
                *to = in_type::<C, T>(*from);
            }
            let tiles = wide.as_chunks::<{ micro::ROWS }>().0;
            for (tile, values) in tiles[..from.len().div_ceil(micro::ROWS)].iter().enumerate() {
                let at = at + (piece * TILES + tile) * len * micro::ROWS;
                // SAFETY: each row has places of its own.
                unsafe { out.slice(at, micro::ROWS) }.copy_from_slice(values);
            }
        }
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
