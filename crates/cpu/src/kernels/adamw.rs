//! One AdamW step in place, one pass over memory.
//!
//! Formula: [`crate::AdamWParams`]. Layouts: dense f32. Numeric notes: coefficients are made in f64 and rounded once;
//! elements are f32, the gradient is scaled first. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
//! Reference: [`crate::reference::adamw_step`].

use crate::par::{self, Shared};
use crate::{AdamWParams, simd};

pub(crate) fn step(
    a: &AdamWParams,
    param: &mut [f32],
    grad: &[f32],
    grad_scale: f32,
    m: &mut [f32],
    v: &mut [f32],
) {
    let keep = (1.0 - a.lr * a.weight_decay) as f32;
    let (beta1, one_minus_beta1) = (a.beta1 as f32, (1.0 - a.beta1) as f32);
    let (beta2, one_minus_beta2) = (a.beta2 as f32, (1.0 - a.beta2) as f32);
    let step_size = (a.lr / (1.0 - a.beta1.powf(a.step as f64))) as f32;
    let inv_sqrt_correction2 = (1.0 / (1.0 - a.beta2.powf(a.step as f64)).sqrt()) as f32;
    let eps = a.eps as f32;
    let (m, v) = (Shared::new(m), Shared::new(v));
    par::elementwise(param, |param, first| {
        let len = param.len();
        let grad = &grad[first..][..len];
        // SAFETY: pieces do not overlap.
        let (m, v) = unsafe { (m.slice(first, len), v.slice(first, len)) };
        simd::run(|| {
            for i in 0..len {
                let g = grad[i] * grad_scale;
                let new_m = beta1 * m[i] + one_minus_beta1 * g;
                let new_v = beta2 * v[i] + one_minus_beta2 * g * g;
                let denominator = new_v.sqrt() * inv_sqrt_correction2 + eps;
                m[i] = new_m;
                v[i] = new_v;
                param[i] = keep * param[i] - step_size * new_m / denominator;
            }
        });
    });
}
