//! SwiGLU.
use super::{narrow, wide};
use crate::reference;
pub(crate) fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    narrow(&reference::swiglu(&wide(gate), &wide(up)), y);
}
pub(crate) fn backward(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    let (g, u) = reference::swiglu_backward(&wide(gate), &wide(up), &wide(dy));
    narrow(&g, dgate);
    narrow(&u, dup);
}
