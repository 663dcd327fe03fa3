//! Reductions.
use super::put;
use crate::Write;
pub(crate) fn sum_rows(x: &[f32], out: &mut [f32], write: Write) {
    let mut sum = vec![0.0; out.len()];
    for (i, x) in x.iter().enumerate() {
        sum[i % out.len()] += *x as f64;
    }
    put(&sum, out, write);
}
pub(crate) fn sum_squares(x: &[f32]) -> f32 {
    x.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() as f32
}
