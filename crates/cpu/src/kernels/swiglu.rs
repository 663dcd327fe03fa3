//! SwiGLU: `y = silu(gate) * up`, `silu(g) = g s` with `s = sigmoid(g)`.
//!
//! Backward: `dup = dy g s`, `dgate = dy up (s + g s (1 - s))`.
//! Layouts: dense f32. Numeric notes: `s` has a relative error under 2 ulp (exp is within 1.1 ulp).
//! Reference: [`crate::reference::swiglu`]. Source: Shazeer 2020, arXiv:2002.05202.

use crate::par::{self, Shared};
use crate::simd;

pub(crate) fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    par::elementwise(y, |y, first| {
        let (gate, up) = (&gate[first..][..y.len()], &up[first..][..y.len()]);
        simd::run(|| {
            for i in 0..y.len() {
                y[i] = gate[i] * simd::sigmoid(gate[i]) * up[i];
            }
        });
    });
}

pub(crate) fn backward(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    let dup = Shared::new(dup);
    par::elementwise(dgate, |dgate, first| {
        let len = dgate.len();
        let (gate, up, dy) = (
            &gate[first..][..len],
            &up[first..][..len],
            &dy[first..][..len],
        );
        // SAFETY: pieces do not overlap.
        let dup = unsafe { dup.slice(first, len) };
        simd::run(|| {
            for i in 0..len {
                let s = simd::sigmoid(gate[i]);
                let silu = gate[i] * s;
                dup[i] = dy[i] * silu;
                dgate[i] = dy[i] * up[i] * silu.mul_add(1.0 - s, s);
            }
        });
    });
}
