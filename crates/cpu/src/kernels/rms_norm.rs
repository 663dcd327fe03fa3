//! RMSNorm over the last dim.
//!
//! Forward: `y = x * inv * weight` with `inv = (mean x^2 + eps)^(-1/2)` per row.
//! Backward: `dx = inv * (dy * weight - x * inv^2 * mean(dy * weight * x))`, `dweight = sum_rows dy * x * inv`.
//! Layouts: `x` and `dx`, `y` and `dy` dense `[rows, D]`, f32, bf16 or f16; `weight`, `dweight` `[D]` and `inv_rms` `[rows]` f32.
//! Numeric notes: f32 inside, means over 16 lanes. `dweight` is summed in at most 64 blocks of rows, combined in order.
//! Reference: [`crate::reference::rms_norm`].
//! Source: Zhang and Sennrich 2019, arXiv:1910.07467.

use super::reduce;
use crate::Write;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::pool::scratch;
use crate::simd::{self, LANES, MulAdd, vectorize};

pub(crate) fn forward<X: Element, Y: Element>(
    x: &[X],
    weight: &[f32],
    eps: f32,
    y: &mut [Y],
    inv_rms: &mut [f32],
) {
    let (dim, rows) = (weight.len(), inv_rms.len());
    let per_task = par::rows_per_task(rows, dim);
    let (y, inv_rms) = (Shared::new(y), Shared::new(inv_rms));
    par::for_each(rows.div_ceil(per_task), x.len(), &|task| {
        let first = task * per_task;
        let rows = per_task.min(rows - first);
        // SAFETY: tasks have rows of their own.
        let (y, inv_rms) =
            unsafe { (y.slice(first * dim, rows * dim), inv_rms.slice(first, rows)) };
        forward_rows(&x[first * dim..][..rows * dim], weight, eps, y, inv_rms);
    });
}

/// Rows a piece of the backward pass, and pieces.
fn pieces_of(rows: usize) -> (usize, usize) {
    par::cut(rows, 16, par::PIECES)
}

/// Elements of scratch that [`backward`] takes.
pub(crate) fn backward_scratch(rows: usize, dim: usize, dweight: bool) -> usize {
    match dweight {
        true => pieces_of(rows).1 * dim,
        false => 0,
    }
}

pub(crate) fn backward<X: Element, Y: Element>(
    x: &[X],
    weight: &[f32],
    inv_rms: &[f32],
    dy: &[Y],
    dx: Option<&mut [X]>,
    dweight: Option<(&mut [f32], Write)>,
) {
    let (dim, rows) = (weight.len(), inv_rms.len());
    let (per_piece, pieces) = pieces_of(rows);
    let mut partials = scratch(backward_scratch(rows, dim, dweight.is_some()));
    let shared_dx = dx.map(Shared::new);
    let shared_partials = dweight.is_some().then(|| Shared::new(&mut partials[..]));
    par::for_each(pieces, x.len(), &|piece| {
        let first = piece * per_piece;
        let rows = per_piece.min(rows - first);
        let (x, dy) = (
            &x[first * dim..][..rows * dim],
            &dy[first * dim..][..rows * dim],
        );
        let inv_rms = &inv_rms[first..][..rows];
        if let Some(dx) = shared_dx {
            // SAFETY: pieces have rows of their own.
            let dx = unsafe { dx.slice(first * dim, rows * dim) };
            dx_rows(x, weight, inv_rms, dy, dx);
        }
        if let Some(partials) = shared_partials {
            // SAFETY: each piece has a row of partial sums of its own.
            dweight_rows(x, inv_rms, dy, unsafe { partials.slice(piece * dim, dim) });
        }
    });
    if let Some((dweight, write)) = dweight {
        reduce::combine(&partials[..pieces * dim], dweight, write);
    }
}

vectorize! {
    fn forward_rows<X: Element, Y: Element>(
        x: &[X],
        weight: &[f32],
        eps: f32,
        y: &mut [Y],
        inv_rms: &mut [f32],
    ) {
        let dim = weight.len();
        for (r, inv_rms) in inv_rms.iter_mut().enumerate() {
            let (x, y) = (&x[r * dim..][..dim], &mut y[r * dim..][..dim]);
            let mean_square = simd::dot::<F, _, _>(x, x) / dim as f32;
            let inv = 1.0 / (mean_square + eps).sqrt();
            *inv_rms = inv;
            for i in 0..dim {
                y[i] = Y::round(x[i].widen() * inv * weight[i]);
            }
        }
    }
}

vectorize! {
    fn dx_rows<X: Element, Y: Element>(
        x: &[X],
        weight: &[f32],
        inv_rms: &[f32],
        dy: &[Y],
        dx: &mut [X],
    ) {
        let dim = weight.len();
        for (r, &inv) in inv_rms.iter().enumerate() {
            let (x, dy) = (&x[r * dim..][..dim], &dy[r * dim..][..dim]);
            let dx = &mut dx[r * dim..][..dim];
            let pull = inv * inv * dot3::<F, _, _>(dy, weight, x) / dim as f32;
            for i in 0..dim {
                dx[i] = X::round(inv * (dy[i].widen() * weight[i] - x[i].widen() * pull));
            }
        }
    }
}

/// `sum_i dy[i] weight[i] x[i]`.
#[inline(always)]
fn dot3<F: MulAdd, X: Element, Y: Element>(dy: &[Y], weight: &[f32], x: &[X]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (dy_whole, dy_rest) = dy.as_chunks::<LANES>();
    let (x_whole, x_rest) = x.as_chunks::<LANES>();
    let (weight_whole, weight_rest) = weight.as_chunks::<LANES>();
    for ((dy, x), weight) in dy_whole.iter().zip(x_whole).zip(weight_whole) {
        for i in 0..LANES {
            lanes[i] = F::mul_add(dy[i].widen() * weight[i], x[i].widen(), lanes[i]);
        }
    }
    for (i, ((dy, x), weight)) in dy_rest.iter().zip(x_rest).zip(weight_rest).enumerate() {
        lanes[i] = F::mul_add(dy.widen() * weight, x.widen(), lanes[i]);
    }
    simd::sum_lanes(lanes)
}

vectorize! {
    fn dweight_rows<X: Element, Y: Element>(
        x: &[X],
        inv_rms: &[f32],
        dy: &[Y],
        dweight: &mut [f32],
    ) {
        let dim = dweight.len();
        dweight.fill(0.0);
        for (r, &inv) in inv_rms.iter().enumerate() {
            let (x, dy) = (&x[r * dim..][..dim], &dy[r * dim..][..dim]);
            for i in 0..dim {
                dweight[i] = F::mul_add(dy[i].widen() * inv, x[i].widen(), dweight[i]);
            }
        }
    }
}
