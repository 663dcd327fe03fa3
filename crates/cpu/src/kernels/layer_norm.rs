//! LayerNorm over the last dim.
//!
//! Forward: `y = h * weight + bias` with `h = (x - mean) * inv`, `inv = (mean (x - mean)^2 + eps)^(-1/2)` per row.
//! Backward, with `e = dy * weight`: `dx = inv * (e - mean(e) - h * mean(e h))`, `dweight = sum_rows dy h`,
//! `dbias = sum_rows dy`.
//! Layouts: `x` and `dx`, `y` and `dy` dense `[rows, D]`, f32, bf16 or f16; `weight`, `bias`, their gradients `[D]`, `mean`
//! and `inv_std` `[rows]` f32.
//! Numeric notes: f32 inside, sums over 64 lanes. The variance is of distances from the mean, whose own rounding is
//! found with them and taken out, so that rows far from 0 lose nothing but what their elements have lost. Gradients of
//! weights are summed in at most 64 blocks of rows, combined in order.
//! Reference: [`crate::reference::layer_norm`].
//! Source: Ba et al. 2016, arXiv:1607.06450.

use super::reduce;
use crate::Write;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::pool::scratch;
use crate::simd::{self, LANES, MulAdd, vectorize};

pub(crate) fn forward<X: Element, Y: Element>(
    x: &[X],
    weight: &[f32],
    bias: &[f32],
    eps: f32,
    y: &mut [Y],
    mean: &mut [f32],
    inv_std: &mut [f32],
) {
    let (dim, rows) = (weight.len(), mean.len());
    let per_task = par::rows_per_task(rows, dim);
    let (y, mean, inv_std) = (Shared::new(y), Shared::new(mean), Shared::new(inv_std));
    par::for_each(rows.div_ceil(per_task), x.len(), &|task| {
        let first = task * per_task;
        let rows = per_task.min(rows - first);
        // SAFETY: tasks have rows of their own.
        let (y, mean, inv_std) = unsafe {
            (
                y.slice(first * dim, rows * dim),
                mean.slice(first, rows),
                inv_std.slice(first, rows),
            )
        };
        let x = &x[first * dim..][..rows * dim];
        forward_rows(x, weight, bias, eps, y, mean, inv_std);
    });
}

/// What the forward pass has left for the backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a, X> {
    pub x: &'a [X],
    pub weight: &'a [f32],
    pub mean: &'a [f32],
    pub inv_std: &'a [f32],
}

/// Rows a piece of the backward pass, and pieces.
fn pieces_of(rows: usize) -> (usize, usize) {
    par::cut(rows, 16, par::PIECES)
}

/// Elements of scratch that [`backward`] takes for as many gradients of weights.
pub(crate) fn backward_scratch(rows: usize, dim: usize, weights: usize) -> usize {
    pieces_of(rows).1 * dim * weights
}

pub(crate) fn backward<X: Element, Y: Element>(
    saved: Saved<X>,
    dy: &[Y],
    dx: Option<&mut [X]>,
    dweight: Option<(&mut [f32], Write)>,
    dbias: Option<(&mut [f32], Write)>,
) {
    let (dim, rows) = (saved.weight.len(), saved.mean.len());
    let (per_piece, pieces) = pieces_of(rows);
    let weights = usize::from(dweight.is_some()) + usize::from(dbias.is_some());
    let mut partials = scratch(backward_scratch(rows, dim, weights));
    let for_weight = if dweight.is_some() { pieces * dim } else { 0 };
    let (of_weight, of_bias) = partials.split_at_mut(for_weight);
    let shared_dx = dx.map(Shared::new);
    let shared_weight = dweight.is_some().then(|| Shared::new(&mut *of_weight));
    let shared_bias = dbias.is_some().then(|| Shared::new(&mut *of_bias));
    par::for_each(pieces, saved.x.len(), &|piece| {
        let first = piece * per_piece;
        let rows = per_piece.min(rows - first);
        let all = first * dim..(first + rows) * dim;
        let dy = &dy[all.clone()];
        let saved = Saved {
            x: &saved.x[all],
            weight: saved.weight,
            mean: &saved.mean[first..][..rows],
            inv_std: &saved.inv_std[first..][..rows],
        };
        // SAFETY: each piece has rows, and a row of partial sums of each kind, of its own.
        let (dx, dweight, dbias) = unsafe {
            (
                shared_dx.map(|dx| dx.slice(first * dim, rows * dim)),
                shared_weight.map(|sums| sums.slice(piece * dim, dim)),
                shared_bias.map(|sums| sums.slice(piece * dim, dim)),
            )
        };
        backward_rows(saved, dy, dx, dweight, dbias);
    });
    if let Some((dweight, write)) = dweight {
        reduce::combine(&of_weight[..pieces * dim], dweight, write);
    }
    if let Some((dbias, write)) = dbias {
        reduce::combine(&of_bias[..pieces * dim], dbias, write);
    }
}

vectorize! {
    fn forward_rows<X: Element, Y: Element>(
        x: &[X],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        y: &mut [Y],
        mean: &mut [f32],
        inv_std: &mut [f32],
    ) {
        let dim = weight.len();
        let bias = &bias[..dim];
        for r in 0..mean.len() {
            let (x, y) = (&x[r * dim..][..dim], &mut y[r * dim..][..dim]);
            let near = sums::<F, X>(x, 0.0).0 / dim as f32;
            let (rest, squares) = sums::<F, X>(x, near);
            // The mean's own rounding, of which the squares have a part.
            let rest = rest / dim as f32;
            let center = near + rest;
            let variance = F::mul_add(-rest, rest, squares / dim as f32).max(0.0);
            let inv = 1.0 / (variance + eps).sqrt();
            mean[r] = center;
            inv_std[r] = inv;
            for i in 0..dim {
                let normalised = (x[i].widen() - center) * inv;
                y[i] = Y::round(F::mul_add(normalised, weight[i], bias[i]));
            }
        }
    }
}

vectorize! {
    fn backward_rows<X: Element, Y: Element>(
        saved: Saved<X>,
        dy: &[Y],
        dx: Option<&mut [X]>,
        dweight: Option<&mut [f32]>,
        dbias: Option<&mut [f32]>,
    ) {
        let dim = saved.weight.len();
        let (mut dx, mut dweight, mut dbias) = (dx, dweight, dbias);
        for sums in [&mut dweight, &mut dbias].into_iter().flatten() {
            sums.fill(0.0);
        }
        for (r, (&mean, &inv)) in saved.mean.iter().zip(saved.inv_std).enumerate() {
            let (x, dy) = (&saved.x[r * dim..][..dim], &dy[r * dim..][..dim]);
            if let Some(dx) = &mut dx {
                dx_row::<F, X, Y>(x, saved.weight, (mean, inv), dy, &mut dx[r * dim..][..dim]);
            }
            if let Some(dweight) = &mut dweight {
                let dweight = &mut dweight[..dim];
                for i in 0..dim {
                    let normalised = (x[i].widen() - mean) * inv;
                    dweight[i] = F::mul_add(dy[i].widen(), normalised, dweight[i]);
                }
            }
            if let Some(dbias) = &mut dbias {
                let dbias = &mut dbias[..dim];
                for i in 0..dim {
                    dbias[i] += dy[i].widen();
                }
            }
        }
    }
}

#[inline(always)]
fn dx_row<F: MulAdd, X: Element, Y: Element>(
    x: &[X],
    weight: &[f32],
    (mean, inv): (f32, f32),
    dy: &[Y],
    dx: &mut [X],
) {
    let dim = x.len();
    let (weight, dy, dx) = (&weight[..dim], &dy[..dim], &mut dx[..dim]);
    let (sum, along) = pulls::<F, X, Y>(x, mean, weight, dy);
    let shift = sum / dim as f32;
    let slope = along * inv * inv / dim as f32;
    for i in 0..dim {
        let e = F::mul_add(dy[i].widen(), weight[i], -shift);
        dx[i] = X::round(inv * F::mul_add(mean - x[i].widen(), slope, e));
    }
}

/// Lanes of the sums below: four registers' worth, or each addition would wait for the last.
const WIDE: usize = 4 * LANES;

#[inline(always)]
fn sum_wide(wide: [f32; WIDE]) -> f32 {
    simd::sum_lanes(std::array::from_fn(|i| {
        (wide[i] + wide[i + LANES]) + (wide[i + 2 * LANES] + wide[i + 3 * LANES])
    }))
}

/// `sum_i (x[i] - from)` and `sum_i (x[i] - from)^2`.
#[inline(always)]
fn sums<F: MulAdd, X: Element>(x: &[X], from: f32) -> (f32, f32) {
    let (mut sum, mut squares) = ([0.0; WIDE], [0.0; WIDE]);
    let (whole, rest) = x.as_chunks::<WIDE>();
    for x in whole {
        for i in 0..WIDE {
            let distance = x[i].widen() - from;
            sum[i] += distance;
            squares[i] = F::mul_add(distance, distance, squares[i]);
        }
    }
    for (i, x) in rest.iter().enumerate() {
        let distance = x.widen() - from;
        sum[i] += distance;
        squares[i] = F::mul_add(distance, distance, squares[i]);
    }
    (sum_wide(sum), sum_wide(squares))
}

/// `sum_i e[i]` and `sum_i e[i] (x[i] - mean)` with `e = dy * weight`.
#[inline(always)]
fn pulls<F: MulAdd, X: Element, Y: Element>(
    x: &[X],
    mean: f32,
    weight: &[f32],
    dy: &[Y],
) -> (f32, f32) {
    let (mut sum, mut along) = ([0.0; WIDE], [0.0; WIDE]);
    let (x_whole, x_rest) = x.as_chunks::<WIDE>();
    let (dy_whole, dy_rest) = dy.as_chunks::<WIDE>();
    let (weight_whole, weight_rest) = weight.as_chunks::<WIDE>();
    for ((x, dy), weight) in x_whole.iter().zip(dy_whole).zip(weight_whole) {
        for i in 0..WIDE {
            let e = dy[i].widen() * weight[i];
            sum[i] += e;
            along[i] = F::mul_add(e, x[i].widen() - mean, along[i]);
        }
    }
    for (i, ((x, dy), weight)) in x_rest.iter().zip(dy_rest).zip(weight_rest).enumerate() {
        let e = dy.widen() * weight;
        sum[i] += e;
        along[i] = F::mul_add(e, x.widen() - mean, along[i]);
    }
    (sum_wide(sum), sum_wide(along))
}
