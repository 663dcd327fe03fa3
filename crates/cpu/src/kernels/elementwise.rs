//! Fill, sum, scaled sum, scaling, row broadcast.
//!
//! Layouts: dense f32. Each element is one rounding of the exact result (`axpy` uses a fused multiply-add).
//! Bound by memory: one task per 16 Ki elements, nothing else to gain.

use crate::par::{self, Shared};
use crate::simd::vectorize;

pub(crate) fn fill(out: &mut [f32], value: f32) {
    par::elementwise(out, |out, _| out.fill(value));
}

/// `out = a + b`.
pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    par::elementwise(out, |out, first| {
        add_piece(&a[first..][..out.len()], &b[first..][..out.len()], out);
    });
}

/// `out += alpha * x`.
pub(crate) fn axpy(alpha: f32, x: &[f32], out: &mut [f32]) {
    par::elementwise(out, |out, first| {
        axpy_piece(alpha, &x[first..][..out.len()], out)
    });
}

/// `out *= factor`.
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    par::elementwise(out, |out, _| scale_piece(out, factor));
}

/// Every row of `out` becomes `row`.
pub(crate) fn broadcast_row(row: &[f32], out: &mut [f32]) {
    if row.is_empty() {
        return;
    }
    let (len, per_task) = (out.len(), row.len() * par::rows_per_task(row.len()));
    let out = Shared::new(out);
    par::for_each(len.div_ceil(per_task), len, |task| {
        let first = task * per_task;
        // SAFETY: tasks have rows of their own.
        let out = unsafe { out.slice(first, per_task.min(len - first)) };
        out.chunks_exact_mut(row.len())
            .for_each(|out| out.copy_from_slice(row));
    });
}

vectorize! {
    fn add_piece(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    }
}

vectorize! {
    fn axpy_piece(alpha: f32, x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = alpha.mul_add(*x, *out);
        }
    }
}

vectorize! {
    pub(crate) fn scale_piece(out: &mut [f32], factor: f32) {
        for out in out {
            *out *= factor;
        }
    }
}
