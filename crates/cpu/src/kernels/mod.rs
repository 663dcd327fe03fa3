//! The kernels, one family a file, on checked slices.

pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod matmul;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod swiglu;

use crate::Write;

/// f32 to f64, for the plain form of a kernel.
fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| *x as f64).collect()
}

fn narrow(x: &[f64], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = *x as f32;
    }
}

fn put(x: &[f64], out: &mut [f32], write: Write) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = *x as f32
            + if write == Write::Accumulate {
                *out
            } else {
                0.0
            };
    }
}
