//! f32 products of packed operands: register tiles, and the order in which they are computed.
//!
//! A register tile is 6 rows of `out` by 64 columns on AVX-512, by 16 on AVX2: 24 or 12 sums, one row of `b`, one broadcast
//! number of `a`; elsewhere 6 by 16 in plain loops, which become vector code. `k` is cut into blocks of at most [`BLOCK`],
//! so that 6 rows of `a` stay in the first-level cache, and a panel of `b` in the second.
//!
//! Numeric notes: one chain of sums along each block, fused multiply-adds but for the generic tile on x86; blocks are
//! added to `out` in order. Cut by the shape alone: the bits depend neither on threads nor on caches. They do depend on
//! the instruction set, by the generic tile only.

use crate::Isa;
use crate::isa;
use crate::simd::LANES;

/// Most numbers along `k` of one chain of sums.
const BLOCK: usize = 384;
/// Rows of a register tile.
pub(super) const ROWS: usize = 6;
/// Rows of `b` that are fetched ahead.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8;

/// Columns of a panel of `b`, and of a register tile.
pub(super) fn panel_cols() -> usize {
    match isa::in_use() {
        Isa::Avx512 | Isa::Avx512Bf16 => 4 * LANES,
        _ => LANES,
    }
}

/// The blocks of `k`, as (first, length): equal but for the last; an empty one if `k` is 0.
pub(super) fn blocks(k: usize) -> impl Iterator<Item = (usize, usize)> {
    let len = block_len(k);
    (0..k.max(1))
        .step_by(len.max(1))
        .map(move |first| (first, len.min(k - first)))
}

/// The longest of them.
fn block_len(k: usize) -> usize {
    match k {
        0 => 0,
        k => k.div_ceil(k.div_ceil(BLOCK)),
    }
}

/// At least the length of the blocks of `k` or less.
pub(super) fn max_block_len(k: usize) -> usize {
    k.min(BLOCK)
}

/// Numbers of a left operand: those of row `r` begin `r * row_step` after `start`, `k_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub start: *const f32,
    pub row_step: usize,
    pub k_step: usize,
}

/// Columns of a right operand: its rows are `k_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub start: *const f32,
    pub k_step: usize,
}

/// Rows of an output, `row_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub start: *mut f32,
    pub row_step: usize,
    /// Whether the product is added to what is there.
    pub adds: bool,
}

/// One block of `k` of `rows` rows and `vectors` times 16 columns, at most a panel's.
///
/// # Safety
/// `a` has `rows` rows and `b` that many columns, of `k` numbers each, inside their allocations; `out` too, and no other
/// task touches it.
pub(super) unsafe fn panel(
    (rows, k, vectors): (usize, usize, usize),
    a: impl Fn(usize) -> Rows,
    b: Columns,
    out: Out,
) {
    let tile = register_tile();
    for row in (0..rows).step_by(ROWS) {
        let out = Out {
            start: out.start.wrapping_add(row * out.row_step),
            ..out
        };
        // SAFETY: as for this function; the instruction set in use is one of this machine.
        unsafe { tile(k, a(row), ROWS.min(rows - row), b, vectors, out) };
    }
}

type Tile = unsafe fn(usize, Rows, usize, Columns, usize, Out);

fn register_tile() -> Tile {
    match isa::in_use() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => x86::avx512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::avx2,
        _ => generic,
    }
}

/// Where each row of a register tile begins; rows from `rows` on repeat the last one.
#[inline(always)]
fn starts<const R: usize>(a: Rows, rows: usize) -> [*const f32; R] {
    std::array::from_fn(|r| a.start.wrapping_add(r.min(rows - 1) * a.row_step))
}

/// Numbers that the plain loops keep sums of in one row: with more, an SSE2 machine has too few registers.
const WIDTH: usize = if cfg!(target_arch = "x86_64") { 8 } else { 16 };

/// # Safety
/// As for [`panel`], for at most [`ROWS`] rows.
unsafe fn generic(k: usize, a: Rows, rows: usize, b: Columns, vectors: usize, out: Out) {
    for col in (0..vectors * LANES).step_by(WIDTH) {
        let starts = starts::<ROWS>(a, rows);
        let mut tile = [[0.0f32; WIDTH]; ROWS];
        for p in 0..k {
            let b = b.start.wrapping_add(p * b.k_step + col);
            // SAFETY: as for this function.
            let b = unsafe { b.cast::<[f32; WIDTH]>().read_unaligned() };
            for r in 0..ROWS {
                // SAFETY: as above.
                let x = unsafe { starts[r].wrapping_add(p * a.k_step).read() };
                for i in 0..WIDTH {
                    tile[r][i] = multiply_add(x, b[i], tile[r][i]);
                }
            }
        }
        for (r, tile) in tile[..rows].iter_mut().enumerate() {
            let to = out
                .start
                .wrapping_add(r * out.row_step + col)
                .cast::<[f32; WIDTH]>();
            if out.adds {
                // SAFETY: as above.
                let before = unsafe { to.read_unaligned() };
                for i in 0..WIDTH {
                    tile[i] += before[i];
                }
            }
            // SAFETY: as above.
            unsafe { to.write_unaligned(*tile) };
        }
    }
}

/// Fused where that is an instruction of every processor. Emulating it, as other kernels do, would take twelve times as
/// long.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use crate::kernels::matmul::micro::{AHEAD, Columns, LANES, Out, Rows, starts};

    macro_rules! register_tile {
        (
            $name:ident, $features:literal, $lanes:literal,
            $zero:ident, $load:ident, $splat:ident, $fmadd:ident, $add:ident, $store:ident
        ) => {
            /// `R` rows of `V` vectors.
            ///
            /// # Safety
            /// As for [`super::panel`], for at most `R` rows, on a machine with these instructions.
            #[target_feature(enable = $features)]
            unsafe fn $name<const R: usize, const V: usize>(
                k: usize,
                a: Rows,
                rows: usize,
                b: Columns,
                out: Out,
            ) {
                let starts = starts::<R>(a, rows);
                let mut tile = [[$zero(); V]; R];
                let mut row_of_b = b.start;
                let mut at = 0;
                for _ in 0..k {
                    let mut vectors = [$zero(); V];
                    for (v, vector) in vectors.iter_mut().enumerate() {
                        let from = row_of_b.wrapping_add(v * $lanes);
                        // SAFETY: as for this function.
                        *vector = unsafe { $load(from) };
                        if v * $lanes % LANES == 0 {
                            // A prefetch may point anywhere.
                            let ahead = from.wrapping_add(AHEAD * b.k_step);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        }
                    }
                    for (start, tile) in starts.iter().zip(&mut tile) {
                        // SAFETY: as for this function.
                        let x = $splat(unsafe { start.wrapping_add(at).read_unaligned() });
                        for (sum, vector) in tile.iter_mut().zip(vectors) {
                            *sum = $fmadd(x, vector, *sum);
                        }
                    }
                    row_of_b = row_of_b.wrapping_add(b.k_step);
                    at += a.k_step;
                }
                for (r, tile) in tile.into_iter().enumerate().take(rows) {
                    for (v, mut sum) in tile.into_iter().enumerate() {
                        let to = out.start.wrapping_add(r * out.row_step + v * $lanes);
                        if out.adds {
                            // SAFETY: as for this function.
                            sum = $add(unsafe { $load(to) }, sum);
                        }
                        // SAFETY: as for this function.
                        unsafe { $store(to, sum) };
                    }
                }
            }
        };
    }

    register_tile!(
        tile_512,
        "avx512f",
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        _mm512_storeu_ps
    );
    register_tile!(
        tile_256,
        "avx2,fma",
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        _mm256_storeu_ps
    );

    /// # Safety
    /// As for [`super::panel`], for at most [`super::ROWS`] rows, on a machine with AVX-512F.
    pub(super) unsafe fn avx512(
        k: usize,
        a: Rows,
        rows: usize,
        b: Columns,
        vectors: usize,
        out: Out,
    ) {
        // SAFETY: as for this function.
        unsafe {
            match (rows, vectors) {
                (1..=2, 1) => tile_512::<2, 1>(k, a, rows, b, out),
                (1..=2, 2) => tile_512::<2, 2>(k, a, rows, b, out),
                (1..=2, 3) => tile_512::<2, 3>(k, a, rows, b, out),
                (1..=2, _) => tile_512::<2, 4>(k, a, rows, b, out),
                (3..=4, 1) => tile_512::<4, 1>(k, a, rows, b, out),
                (3..=4, 2) => tile_512::<4, 2>(k, a, rows, b, out),
                (3..=4, 3) => tile_512::<4, 3>(k, a, rows, b, out),
                (3..=4, _) => tile_512::<4, 4>(k, a, rows, b, out),
                (_, 1) => tile_512::<6, 1>(k, a, rows, b, out),
                (_, 2) => tile_512::<6, 2>(k, a, rows, b, out),
                (_, 3) => tile_512::<6, 3>(k, a, rows, b, out),
                _ => tile_512::<6, 4>(k, a, rows, b, out),
            }
        }
    }

    /// # Safety
    /// As for [`super::panel`], for at most [`super::ROWS`] rows, on a machine with AVX2 and FMA.
    pub(super) unsafe fn avx2(k: usize, a: Rows, rows: usize, b: Columns, _one: usize, out: Out) {
        // SAFETY: as for this function; a panel is one vector of 16.
        unsafe {
            match rows {
                1..=2 => tile_256::<2, 2>(k, a, rows, b, out),
                3..=4 => tile_256::<4, 2>(k, a, rows, b, out),
                _ => tile_256::<6, 2>(k, a, rows, b, out),
            }
        }
    }
}
