//! Elementwise.
pub(crate) fn fill(out: &mut [f32], value: f32) {
    out.fill(value);
}
pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] = a[i] + b[i];
    }
}
pub(crate) fn axpy(alpha: f32, x: &[f32], out: &mut [f32]) {
    for i in 0..out.len() {
        out[i] += alpha * x[i];
    }
}
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    for x in out {
        *x *= factor;
    }
}
pub(crate) fn broadcast_row(row: &[f32], out: &mut [f32]) {
    if !row.is_empty() {
        out.chunks_exact_mut(row.len())
            .for_each(|out| out.copy_from_slice(row));
    }
}
