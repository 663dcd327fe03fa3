//! AdamW.
use super::{narrow, wide};
use crate::{AdamWParams, reference};
pub(crate) fn step(
    a: &AdamWParams,
    param: &mut [f32],
    grad: &[f32],
    grad_scale: f32,
    m: &mut [f32],
    v: &mut [f32],
) {
    let (mut p64, mut m64, mut v64) = (wide(param), wide(m), wide(v));
    reference::adamw_step(
        a,
        &mut p64,
        &wide(grad),
        grad_scale as f64,
        &mut m64,
        &mut v64,
    );
    narrow(&p64, param);
    narrow(&m64, m);
    narrow(&v64, v);
}
