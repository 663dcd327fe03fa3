//! SwiGLU: `y = silu(gate) * up`, `silu(g) = g s` with `s = sigmoid(g)`.
//!
//! Backward: `dup = dy g s`, `dgate = dy up (s + g s (1 - s))`.
//! Layouts: dense f32, bf16 or f16. Numeric notes: f32 inside; `s` has a relative error under 2 ulp (exp is within 1.1 ulp).
//! Reference: [`crate::reference::swiglu`]. Source: Shazeer 2020, arXiv:2002.05202.

use crate::element::Element;
use crate::par::{self, Shared};
use crate::simd::{self, vectorize};

pub(crate) fn forward<T: Element>(gate: &[T], up: &[T], y: &mut [T]) {
    par::elementwise(y, |y, first| {
        forward_piece(&gate[first..][..y.len()], &up[first..][..y.len()], y);
    });
}

pub(crate) fn backward<T: Element>(gate: &[T], up: &[T], dy: &[T], dgate: &mut [T], dup: &mut [T]) {
    let dup = Shared::new(dup);
    par::elementwise(dgate, |dgate, first| {
        let len = dgate.len();
        // SAFETY: pieces do not overlap.
        let dup = unsafe { dup.slice(first, len) };
        let [gate, up, dy] = [gate, up, dy].map(|x| &x[first..][..len]);
        backward_piece(gate, up, dy, dgate, dup);
    });
}

vectorize! {
    fn forward_piece<T: Element>(gate: &[T], up: &[T], y: &mut [T]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            let gate = gate.widen();
            *y = T::round(gate * simd::sigmoid::<F>(gate) * up.widen());
        }
    }
}

vectorize! {
    fn backward_piece<T: Element>(
        gate: &[T],
        up: &[T],
        dy: &[T],
        dgate: &mut [T],
        dup: &mut [T],
    ) {
        let len = dgate.len();
        let (gate, up, dy, dup) = (&gate[..len], &up[..len], &dy[..len], &mut dup[..len]);
        for i in 0..len {
            let (gate, dy) = (gate[i].widen(), dy[i].widen());
            let s = simd::sigmoid::<F>(gate);
            let silu = gate * s;
            dup[i] = T::round(dy * silu);
            dgate[i] = T::round(dy * up[i].widen() * F::mul_add(silu, 1.0 - s, s));
        }
    }
}
