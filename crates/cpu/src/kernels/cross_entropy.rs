//! Linear cross-entropy.
use super::{narrow, wide};
use crate::{CrossEntropyParams, reference};
pub(crate) fn linear(
    params: &CrossEntropyParams,
    hidden: &[f32],
    weight: &[f32],
    labels: &[i64],
    dim: usize,
    dhidden: Option<&mut [f32]>,
    dweight: Option<&mut [f32]>,
) -> [f32; 3] {
    if dim == 0 {
        return [0.0; 3];
    }
    let (totals, gh, gw) =
        reference::linear_cross_entropy(params, &wide(hidden), &wide(weight), labels, dim);
    if let Some(dhidden) = dhidden {
        narrow(&gh, dhidden);
    }
    if let Some(dweight) = dweight {
        narrow(&gw, dweight);
    }
    totals.map(|x| x as f32)
}
