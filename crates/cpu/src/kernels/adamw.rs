//! One AdamW step in place, one pass over memory.
//!
//! Formula: [`crate::AdamWParams`]. Layouts: dense f32. Numeric notes: coefficients are made in f64 and rounded once;
//! elements are f32, the gradient is scaled first. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
//! Reference: [`crate::reference::adamw_step`].

use crate::AdamWParams;
use crate::par::{self, Shared};
use crate::simd::vectorize;

/// What one element's update multiplies by.
struct Coefficients {
    grad_scale: f32,
    keep: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    step_size: f32,
    inv_sqrt_correction2: f32,
    eps: f32,
}

pub(crate) fn step(
    a: &AdamWParams,
    param: &mut [f32],
    grad: &[f32],
    grad_scale: f32,
    m: &mut [f32],
    v: &mut [f32],
) {
    let steps = a.step as f64;
    let c = Coefficients {
        grad_scale,
        keep: (1.0 - a.lr * a.weight_decay) as f32,
        beta1: a.beta1 as f32,
        one_minus_beta1: (1.0 - a.beta1) as f32,
        beta2: a.beta2 as f32,
        one_minus_beta2: (1.0 - a.beta2) as f32,
        step_size: (a.lr / (1.0 - a.beta1.powf(steps))) as f32,
        inv_sqrt_correction2: (1.0 / (1.0 - a.beta2.powf(steps)).sqrt()) as f32,
        eps: a.eps as f32,
    };
    let (m, v) = (Shared::new(m), Shared::new(v));
    par::elementwise(param, |param, first| {
        let len = param.len();
        // SAFETY: pieces do not overlap.
        let (m, v) = unsafe { (m.slice(first, len), v.slice(first, len)) };
        step_piece(&c, param, &grad[first..][..len], m, v);
    });
}

vectorize! {
    fn step_piece(c: &Coefficients, param: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32]) {
        let len = param.len();
        let (grad, m, v) = (&grad[..len], &mut m[..len], &mut v[..len]);
        for i in 0..len {
            let g = grad[i] * c.grad_scale;
            m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g;
            v[i] = c.beta2 * v[i] + c.one_minus_beta2 * g * g;
            let denominator = v[i].sqrt() * c.inv_sqrt_correction2 + c.eps;
            param[i] = c.keep * param[i] - c.step_size * m[i] / denominator;
        }
    }
}
