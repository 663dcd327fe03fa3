//! Products of bf16 on AVX512-BF16: `vdpbf16ps` multiplies pairs of numbers and adds both products to an f32 sum.
//!
//! Layouts: a pair is a `u32`, the number of the even `k` in its low half; an odd `k` ends in a pair with 0. A packed
//! operand is cut into panels of columns, each `[pairs, width]` with `width` whole vectors, zeros beyond the
//! operand. Rows of a bf16 left operand that are contiguous along `k` are pairs already and are read in place.
//!
//! The register tile is 6 rows by 64 columns: 24 sums, 4 vectors of `b`, one broadcast pair of `a`.
//! Numeric notes: f32 sums in the order of `k`, subnormal numbers taken as 0. No block along `k`, so that a
//! 16-bit output is rounded once.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS.

use candle_core::DType;

use super::tile::{Matrix, Target, scatter, store};
use crate::Write;
use crate::element::Element;
use crate::simd::{LANES, vectorize};

/// Columns of a panel of the right operand, and of the register tile.
pub(super) const COLS: usize = 64;
/// Rows of the register tile.
const ROWS: usize = 6;
/// Rows of a panel of the left operand: whole register tiles in whole vectors.
const PANEL_ROWS: usize = 48;

/// Scratch as pairs.
pub(super) fn words(scratch: &mut [f32]) -> &mut [u32] {
    // SAFETY: both types have the same size and alignment, and every pattern of bits is a value of both.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len()) }
}

/// Whether the rows of a bf16 left operand are whole pairs.
pub(super) fn is_packed(col_stride: usize, k: usize) -> bool {
    col_stride == 1 && k.is_multiple_of(2)
}

vectorize! {
    /// Packs `b` `[k, n]` into panels of at most `width` columns.
    pub(super) fn pack<T: Element>(
        b: Matrix<T>,
        k: usize,
        n: usize,
        width: usize,
        out: &mut [u32],
    ) {
        let pairs = k.div_ceil(2);
        for col in (0..n).step_by(width) {
            let cols = width.min(n - col);
            let padded = cols.next_multiple_of(LANES);
            let panel = &mut out[pairs * col..][..pairs * padded];
            let b = b.from(0, col);
            if b.col_stride == 1 {
                pack_rows(b, k, cols, padded, panel);
            } else {
                pack_columns(b, k, cols, padded, panel);
            }
        }
    }
}

/// A panel of a matrix whose rows are contiguous.
#[inline(always)]
fn pack_rows<T: Element>(b: Matrix<T>, k: usize, cols: usize, padded: usize, panel: &mut [u32]) {
    for (p, out) in panel.chunks_exact_mut(padded).enumerate() {
        let even = &b.data[2 * p * b.row_stride..][..cols];
        let (out, padding) = out.split_at_mut(cols);
        if 2 * p + 1 < k {
            let odd = &b.data[(2 * p + 1) * b.row_stride..][..cols];
            for ((out, even), odd) in out.iter_mut().zip(even).zip(odd) {
                *out = pair(*even, *odd);
            }
        } else {
            for (out, even) in out.iter_mut().zip(even) {
                *out = even.bf16_bits() as u32;
            }
        }
        padding.fill(0);
    }
}

/// A panel of any other matrix, in blocks of 16 x 16 pairs that stay in the L1 cache.
#[inline(always)]
fn pack_columns<T: Element>(b: Matrix<T>, k: usize, cols: usize, padded: usize, panel: &mut [u32]) {
    let pairs = k.div_ceil(2);
    for first in (0..pairs).step_by(LANES) {
        let count = LANES.min(pairs - first);
        for col in (0..padded).step_by(LANES) {
            let mut block = [[0; LANES]; LANES]; // [col][pair]
            let block_cols = LANES.min(cols.saturating_sub(col));
            for (c, block) in block[..block_cols].iter_mut().enumerate() {
                let from = b.from(2 * first, col + c);
                if b.row_stride == 1 && 2 * (first + LANES) <= k {
                    let (from, _) = from.data[..2 * LANES].as_chunks::<2>();
                    for (block, [even, odd]) in block.iter_mut().zip(from) {
                        *block = pair(*even, *odd);
                    }
                } else {
                    gather(from, k - 2 * first, &mut block[..count]);
                }
            }
            scatter(&block, count, &mut panel[first * padded + col..], padded);
        }
    }
}

/// The first pairs of a column of `k` numbers, one by one: edges and unusual strides, not worth vector code.
#[inline(never)]
fn gather<T: Element>(column: Matrix<T>, k: usize, out: &mut [u32]) {
    let bits = |i: usize| column.data[i * column.row_stride].bf16_bits() as u32;
    for (p, pair) in out.iter_mut().enumerate() {
        let odd = if 2 * p + 1 < k { bits(2 * p + 1) } else { 0 };
        *pair = bits(2 * p) | odd << 16;
    }
}

#[inline(always)]
fn pair<T: Element>(even: T, odd: T) -> u32 {
    even.bf16_bits() as u32 | (odd.bf16_bits() as u32) << 16
}

/// Pairs of the rows of a left operand: row `r` begins at `start(r)`, its pairs are `step` bytes apart.
struct Rows {
    base: *const u8,
    row_bytes: usize,
    step: usize,
}

/// `a` `[m, k]` times the packed `b` `[k, n]`.
///
/// # Safety
/// The machine has AVX512-BF16, and no other task touches the elements of `to` meanwhile.
pub(super) unsafe fn multiply<A: Element, O: Element>(
    (m, k, n): (usize, usize, usize),
    a: Matrix<A>,
    b: &[u32],
    to: Target<O>,
    write: Write,
    scratch: &mut [f32],
) {
    let pairs = k.div_ceil(2);
    assert!(
        b.len() >= pairs * n.next_multiple_of(LANES),
        "the product reads past b"
    );
    let in_place = A::DTYPE == DType::BF16 && is_packed(a.col_stride, k);
    let packed = if in_place {
        assert!(a.reach(m, k) <= a.data.len(), "the product reads past a");
        &[][..]
    } else {
        let scratch = words(&mut scratch[..pairs * m.next_multiple_of(LANES)]);
        pack(a.t(), k, m, PANEL_ROWS, scratch);
        &*scratch
    };
    let rows_from = |row: usize| {
        if in_place {
            let base = a.data[(row * a.row_stride).min(a.data.len())..].as_ptr();
            return Rows {
                base: base.cast(),
                row_bytes: 2 * a.row_stride,
                step: 4,
            };
        }
        let panel = row / PANEL_ROWS * PANEL_ROWS;
        let width = PANEL_ROWS.min(m - panel).next_multiple_of(LANES);
        Rows {
            base: packed[pairs * panel..][row - panel..].as_ptr().cast(),
            row_bytes: 4,
            step: 4 * width,
        }
    };
    let mut sums = [[0.0; COLS]; ROWS];
    for col in (0..n).step_by(COLS) {
        let cols = COLS.min(n - col);
        let panel = b[pairs * col..].as_ptr();
        for row in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - row);
            let a = rows_from(row);
            // SAFETY: rows `row..row + rows` of `a` and the panel of `b` hold `pairs` pairs each, by the assertions.
            unsafe { kernel(pairs, &a, rows, panel, cols.div_ceil(LANES), &mut sums) };
            for (r, sums) in sums[..rows].iter().enumerate() {
                // SAFETY: as for this function.
                let out = unsafe { to.out.slice(to.at + (row + r) * to.row_stride + col, cols) };
                store(&sums[..cols], out, write);
            }
        }
    }
}

/// One register tile of `vectors` vectors. Rows from `rows` on repeat the last one.
///
/// # Safety
/// The machine has AVX512-BF16; `rows` rows of `a` hold `pairs` pairs, `b` as many vectors of `vectors * 16`.
#[cfg(target_arch = "x86_64")]
unsafe fn kernel(
    pairs: usize,
    a: &Rows,
    rows: usize,
    b: *const u32,
    vectors: usize,
    sums: &mut [[f32; COLS]; ROWS],
) {
    let starts = std::array::from_fn(|r| a.base.wrapping_add(r.min(rows - 1) * a.row_bytes));
    // SAFETY: as for this function.
    unsafe {
        match vectors {
            1 => register_tile::<1>(pairs, starts, a.step, b, sums),
            2 => register_tile::<2>(pairs, starts, a.step, b, sums),
            3 => register_tile::<3>(pairs, starts, a.step, b, sums),
            _ => register_tile::<4>(pairs, starts, a.step, b, sums),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn kernel(
    _: usize,
    _: &Rows,
    _: usize,
    _: *const u32,
    _: usize,
    _: &mut [[f32; COLS]; ROWS],
) {
    unreachable!("pairs are packed only where the machine multiplies them")
}

/// # Safety
/// As for [`kernel`], for each of the rows that begin at `starts`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn register_tile<const V: usize>(
    pairs: usize,
    starts: [*const u8; ROWS],
    step: usize,
    b: *const u32,
    sums: &mut [[f32; COLS]; ROWS],
) {
    use std::arch::x86_64::*;
    let mut tile = [[_mm512_setzero_ps(); V]; ROWS];
    for p in 0..pairs {
        let mut vectors = [_mm512_setzero_si512(); V];
        for (v, vector) in vectors.iter_mut().enumerate() {
            // SAFETY: as for this function.
            *vector = unsafe { _mm512_loadu_si512(b.add((p * V + v) * LANES).cast()) };
        }
        for (start, tile) in starts.iter().zip(&mut tile) {
            // SAFETY: as for this function; rows need not be aligned to pairs.
            let pair = unsafe { start.add(p * step).cast::<i32>().read_unaligned() };
            let pair = _mm512_set1_epi32(pair);
            for (sum, vector) in tile.iter_mut().zip(vectors) {
                // SAFETY: both are 512 bits of which every pattern is valid.
                let (pair, vector) = unsafe {
                    (
                        std::mem::transmute::<__m512i, __m512bh>(pair),
                        std::mem::transmute::<__m512i, __m512bh>(vector),
                    )
                };
                *sum = _mm512_dpbf16_ps(*sum, pair, vector);
            }
        }
    }
    for (sums, tile) in sums.iter_mut().zip(tile) {
        for (sums, vector) in sums.chunks_exact_mut(LANES).zip(tile) {
            // SAFETY: a chunk is one vector.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), vector) };
        }
    }
}
