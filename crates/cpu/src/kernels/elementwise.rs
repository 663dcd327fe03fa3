//! Fill, sum, scaled sum, scaling, row broadcast.
//!
//! Layouts: dense f32. Each element is one rounding of the exact result (`axpy` uses a fused multiply-add).
//! Bound by memory: one task per 16 Ki elements, nothing else to gain.

use crate::{par, simd};

pub(crate) fn fill(out: &mut [f32], value: f32) {
    par::elementwise(out, |out, _| out.fill(value));
}

/// `out = a + b`.
pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    par::elementwise(out, |out, first| {
        let (a, b) = (&a[first..][..out.len()], &b[first..][..out.len()]);
        simd::run(|| {
            for i in 0..out.len() {
                out[i] = a[i] + b[i];
            }
        });
    });
}

/// `out += alpha * x`.
pub(crate) fn axpy(alpha: f32, x: &[f32], out: &mut [f32]) {
    par::elementwise(out, |out, first| {
        let x = &x[first..][..out.len()];
        simd::run(|| {
            for i in 0..out.len() {
                out[i] = alpha.mul_add(x[i], out[i]);
            }
        });
    });
}

/// `out *= factor`.
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    par::elementwise(out, |out, _| {
        simd::run(|| {
            for x in out {
                *x *= factor;
            }
        });
    });
}

/// Every row of `out` becomes `row`.
pub(crate) fn broadcast_row(row: &[f32], out: &mut [f32]) {
    if row.is_empty() {
        return;
    }
    use rayon::prelude::*;
    let task = row.len() * par::rows_per_task(row.len());
    out.par_chunks_mut(task).for_each(|out| {
        out.chunks_exact_mut(row.len())
            .for_each(|out| out.copy_from_slice(row))
    });
}
