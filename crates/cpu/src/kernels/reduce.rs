//! Sums over rows and sums of squares.
//!
//! `sum_rows`: `out[c] (+)= sum_r x[r, c]`, x dense `[rows, cols]` f32, bf16 or f16, summed in f32: at most 64 blocks of rows, each
//! summed top to bottom, then the blocks in order.
//! `sum_squares`: f64 throughout, at most 256 blocks of 16 lanes, combined in order.

use crate::element::Element;
use crate::pool::scratch;
use crate::simd::{LANES, vectorize};
use crate::{Write, par};

pub(crate) fn sum_rows<T: Element>(x: &[T], out: &mut [f32], write: Write) {
    let cols = out.len();
    if cols == 0 {
        return;
    }
    let rows = x.len() / cols;
    let (rows_per_piece, pieces) = pieces_of(rows);
    let mut partials = scratch(sum_rows_scratch(rows, cols));
    let shared = par::Shared::new(&mut partials);
    par::for_each(pieces, x.len(), &|piece| {
        // SAFETY: each piece has a row of partial sums of its own.
        let sums = unsafe { shared.slice(piece * cols, cols) };
        sums.fill(0.0);
        let first = piece * rows_per_piece * cols;
        let rows = &x[first..x.len().min(first + rows_per_piece * cols)];
        add_rows(rows, sums);
    });
    combine(&partials, out, write);
}

/// Rows a piece, and pieces.
fn pieces_of(rows: usize) -> (usize, usize) {
    par::cut(rows, 16, par::PIECES)
}

/// Elements of scratch that [`sum_rows`] takes.
pub(crate) fn sum_rows_scratch(rows: usize, cols: usize) -> usize {
    pieces_of(rows).1 * cols
}

/// Adds the rows of `partials` to `out`, or to zero, in order.
pub(crate) fn combine(partials: &[f32], out: &mut [f32], write: Write) {
    if write == Write::Assign {
        out.fill(0.0);
    }
    if !out.is_empty() {
        add_rows(partials, out);
    }
}

vectorize! {
    /// Adds every row of `rows` to `sums`, top to bottom.
    pub(crate) fn add_rows<T: Element>(rows: &[T], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x.widen();
            }
        }
    }
}

pub(crate) fn sum_squares(x: &[f32]) -> f32 {
    const MAX_PIECES: usize = 256;
    let mut partials = [0.0f64; MAX_PIECES];
    let least = par::piece_len(x.len(), par::PIECES, LANES);
    let (per_piece, pieces) = par::cut(x.len(), least, MAX_PIECES);
    let shared = par::Shared::new(&mut partials);
    par::for_each(pieces, x.len(), &|piece| {
        let first = piece * per_piece;
        let x = &x[first..x.len().min(first + per_piece)];
        // SAFETY: each piece has a partial sum of its own.
        let sum = unsafe { shared.slice(piece, 1) };
        sum[0] = sum_squares_piece(x);
    });
    partials[..pieces].iter().sum::<f64>() as f32
}

vectorize! {
    fn sum_squares_piece(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; LANES];
        let (whole, rest) = x.as_chunks::<LANES>();
        for x in whole {
            for lane in 0..LANES {
                lanes[lane] += x[lane] as f64 * x[lane] as f64; // the product is exact
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += *x as f64 * *x as f64;
        }
        lanes.iter().sum()
    }
}
