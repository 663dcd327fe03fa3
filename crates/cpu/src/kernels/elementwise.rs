//! Fill, cast, sum, scaled sum, scaling, row broadcast.
//!
//! Layouts: dense f32, bf16 or f16, in any mix. Each element is one rounding of the exact result of widened
//! operands (`axpy` uses a fused multiply-add), or one of f32 and one of the output's type.
//! Bound by memory: one task per 16 Ki elements or, for many threads, fewer; nothing else to gain.

use crate::element::Element;
use crate::par::{self, Shared};
use crate::simd::vectorize;

pub(crate) fn fill<T: Element>(out: &mut [T], value: f32) {
    par::elementwise(out, |out, _| out.fill(T::round(value)));
}

/// `out = x`.
pub(crate) fn cast<X: Element, O: Element>(x: &[X], out: &mut [O]) {
    par::elementwise(out, |out, first| cast_piece(&x[first..][..out.len()], out));
}

/// `out = a + b`.
pub(crate) fn add<A: Element, B: Element, O: Element>(a: &[A], b: &[B], out: &mut [O]) {
    par::elementwise(out, |out, first| {
        add_piece(&a[first..][..out.len()], &b[first..][..out.len()], out);
    });
}

/// `out += alpha * x`.
pub(crate) fn axpy<X: Element, O: Element>(alpha: f32, x: &[X], out: &mut [O]) {
    par::elementwise(out, |out, first| {
        axpy_piece(alpha, &x[first..][..out.len()], out)
    });
}

/// `out *= factor`. By 1 nothing is read or written: gradients that are computed with the loss are most often scaled so.
pub(crate) fn scale<T: Element>(out: &mut [T], factor: f32) {
    if factor == 1.0 {
        return;
    }
    par::elementwise(out, |out, _| scale_piece(out, factor));
}

/// Every row of `out` becomes `row`.
pub(crate) fn broadcast_row<X: Element, O: Element>(row: &[X], out: &mut [O]) {
    if row.is_empty() {
        return;
    }
    let (len, cols) = (out.len(), row.len());
    let per_task = cols * par::rows_per_task(len / cols, cols);
    let out = Shared::new(out);
    par::for_each(len.div_ceil(per_task), len, &|task| {
        let first = task * per_task;
        // SAFETY: tasks have rows of their own.
        let out = unsafe { out.slice(first, per_task.min(len - first)) };
        out.chunks_exact_mut(row.len())
            .for_each(|out| cast_piece(row, out));
    });
}

vectorize! {
    pub(crate) fn cast_piece<X: Element, O: Element>(x: &[X], out: &mut [O]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = O::round(x.widen());
        }
    }
}

vectorize! {
    fn add_piece<A: Element, B: Element, O: Element>(a: &[A], b: &[B], out: &mut [O]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = O::round(a.widen() + b.widen());
        }
    }
}

vectorize! {
    fn axpy_piece<X: Element, O: Element>(alpha: f32, x: &[X], out: &mut [O]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = O::round(F::mul_add(alpha, x.widen(), out.widen()));
        }
    }
}

vectorize! {
    pub(crate) fn scale_piece<T: Element>(out: &mut [T], factor: f32) {
        for out in out {
            *out = T::round(out.widen() * factor);
        }
    }
}
