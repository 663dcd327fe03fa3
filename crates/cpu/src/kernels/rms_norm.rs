//! RMSNorm.
use super::{narrow, put, wide};
use crate::{Write, reference};
pub(crate) fn forward(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32], inv_rms: &mut [f32]) {
    if weight.is_empty() {
        return;
    }
    let (out, inv) = reference::rms_norm(&wide(x), &wide(weight), eps as f64);
    narrow(&out, y);
    narrow(&inv, inv_rms);
}
pub(crate) fn backward(
    x: &[f32],
    weight: &[f32],
    inv_rms: &[f32],
    dy: &[f32],
    dx: Option<&mut [f32]>,
    dweight: Option<(&mut [f32], Write)>,
) {
    let (gx, gw) = reference::rms_norm_backward(&wide(x), &wide(weight), &wide(inv_rms), &wide(dy));
    if let Some(dx) = dx {
        narrow(&gx, dx);
    }
    if let Some((dweight, write)) = dweight {
        put(&gw, dweight, write);
    }
}
