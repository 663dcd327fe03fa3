//! Embedding.
pub(crate) fn forward(weight: &[f32], ids: &[u32], dim: usize, y: &mut [f32]) {
    if dim > 0 {
        for (y, id) in y.chunks_exact_mut(dim).zip(ids) {
            y.copy_from_slice(&weight[*id as usize * dim..][..dim]);
        }
    }
}
pub(crate) fn backward(ids: &[u32], dy: &[f32], dim: usize, dweight: &mut [f32]) {
    for (dy, id) in dy.chunks_exact(dim).zip(ids) {
        let dw = &mut dweight[*id as usize * dim..][..dim];
        dw.iter_mut().zip(dy).for_each(|(w, y)| *w += y);
    }
}
