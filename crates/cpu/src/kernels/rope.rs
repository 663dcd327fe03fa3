//! RoPE.
use super::{narrow, wide};
use crate::check::Heads;
use crate::reference;
pub(crate) fn rotate(
    x: Heads,
    dims @ [_, _, heads, dim]: [usize; 4],
    cos: &[f32],
    sin: &[f32],
    positions: &[u32],
    inverse: bool,
    y: &mut [f32],
) {
    let x = x.to_dense(dims);
    let out = reference::rope(&x, &wide(cos), &wide(sin), positions, heads, dim, inverse);
    narrow(&out, y);
}
