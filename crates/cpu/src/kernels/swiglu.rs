//! SwiGLU: `y = silu(gate) * up`, `silu(g) = g s` with `s = sigmoid(g)`.
//!
//! Backward: `dup = dy g s`, `dgate = dy up (s + g s (1 - s))`.
//! Layouts: dense f32. Numeric notes: `s` has a relative error under 2 ulp (exp is within 1.1 ulp).
//! Reference: [`crate::reference::swiglu`]. Source: Shazeer 2020, arXiv:2002.05202.

use crate::par::{self, Shared};
use crate::simd::{self, vectorize};

pub(crate) fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    par::elementwise(y, |y, first| {
        forward_piece(&gate[first..][..y.len()], &up[first..][..y.len()], y);
    });
}

pub(crate) fn backward(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
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
    fn forward_piece(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * simd::sigmoid(*gate) * up;
        }
    }
}

vectorize! {
    fn backward_piece(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let len = dgate.len();
        let (gate, up, dy, dup) = (&gate[..len], &up[..len], &dy[..len], &mut dup[..len]);
        for i in 0..len {
            let s = simd::sigmoid(gate[i]);
            let silu = gate[i] * s;
            dup[i] = dy[i] * silu;
            dgate[i] = dy[i] * up[i] * silu.mul_add(1.0 - s, s);
        }
    }
}
