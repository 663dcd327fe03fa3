//! RMSNorm over the last dim.
//!
//! Forward: `y = x * inv * weight` with `inv = (mean x^2 + eps)^(-1/2)` per row.
//! Backward: `dx = inv * (dy * weight - x * inv^2 * mean(dy * weight * x))`, `dweight = sum_rows dy * x * inv`.
//! Layouts: `x`, `y`, `dy`, `dx` dense `[rows, D]`; `weight`, `dweight` `[D]`; `inv_rms` `[rows]`.
//! Numeric notes: means in f32 over 16 lanes. `dweight` is summed in at most 64 blocks of rows, combined in order.
//! Reference: [`crate::reference::rms_norm`].
//! Source: Zhang and Sennrich 2019, arXiv:1910.07467.

use super::reduce;
use crate::par::{self, Shared};
use crate::pool::scratch;
use crate::{Write, simd};

pub(crate) fn forward(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32], inv_rms: &mut [f32]) {
    let (dim, rows) = (weight.len(), inv_rms.len());
    let per_task = par::rows_per_task(dim);
    let (y, inv_rms) = (Shared::new(y), Shared::new(inv_rms));
    par::for_each(rows.div_ceil(per_task), |task| {
        let first = task * per_task;
        let rows = per_task.min(rows - first);
        // SAFETY: tasks have rows of their own.
        let (y, inv_rms) =
            unsafe { (y.slice(first * dim, rows * dim), inv_rms.slice(first, rows)) };
        simd::run(|| {
            for r in 0..rows {
                let (x, y) = (&x[(first + r) * dim..][..dim], &mut y[r * dim..][..dim]);
                let mean_square = simd::sum(dim, |i| x[i] * x[i]) / dim as f32;
                let inv = 1.0 / (mean_square + eps).sqrt();
                inv_rms[r] = inv;
                for i in 0..dim {
                    y[i] = x[i] * inv * weight[i];
                }
            }
        });
    });
}

pub(crate) fn backward(
    x: &[f32],
    weight: &[f32],
    inv_rms: &[f32],
    dy: &[f32],
    dx: Option<&mut [f32]>,
    dweight: Option<(&mut [f32], Write)>,
) {
    let (dim, rows) = (weight.len(), inv_rms.len());
    let (per_piece, pieces) = par::cut(rows, 16, 64);
    let mut partials = scratch(if dweight.is_some() { pieces * dim } else { 0 });
    let shared_dx = dx.map(Shared::new);
    let shared_partials = dweight.is_some().then(|| Shared::new(&mut partials[..]));
    par::for_each(pieces, |piece| {
        let first = piece * per_piece;
        let rows = first..(first + per_piece).min(rows);
        // SAFETY: pieces have rows, and a row of partial sums, of their own.
        let (mut dx, mut dweight) = unsafe {
            (
                shared_dx.map(|dx| dx.slice(first * dim, rows.len() * dim)),
                shared_partials.map(|partials| partials.slice(piece * dim, dim)),
            )
        };
        simd::run(|| {
            if let Some(dweight) = &mut dweight {
                dweight.fill(0.0);
            }
            for r in rows {
                let (x, dy) = (&x[r * dim..][..dim], &dy[r * dim..][..dim]);
                let inv = inv_rms[r];
                if let Some(dx) = &mut dx {
                    let dx = &mut dx[(r - first) * dim..][..dim];
                    let dot = simd::sum(dim, |i| dy[i] * weight[i] * x[i]);
                    let pull = inv * inv * dot / dim as f32;
                    for i in 0..dim {
                        dx[i] = inv * (dy[i] * weight[i] - x[i] * pull);
                    }
                }
                if let Some(dweight) = &mut dweight {
                    for i in 0..dim {
                        dweight[i] = (dy[i] * inv).mul_add(x[i], dweight[i]);
                    }
                }
            }
        });
    });
    if let Some((dweight, write)) = dweight {
        reduce::combine(&partials[..pieces * dim], dweight, write);
    }
}
