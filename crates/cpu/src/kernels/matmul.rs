//! Matrix products.
use crate::Write;
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub data: &'a [f32],
    pub strides: &'a [usize],
}
pub(crate) fn batched(
    batch: &[usize],
    a: Operand,
    b: Operand,
    (m, k, n): (usize, usize, usize),
    out: &mut [f32],
    write: Write,
) {
    let rank = batch.len();
    let offset = |o: Operand, mut index: usize| {
        let mut at = 0;
        for d in (0..rank).rev() {
            at += index % batch[d] * o.strides[d];
            index /= batch[d];
        }
        at
    };
    for i in 0..batch.iter().product() {
        let (at_a, at_b) = (offset(a, i), offset(b, i));
        for r in 0..m {
            for c in 0..n {
                let sum: f64 = (0..k)
                    .map(|l| {
                        let a = a.data[at_a + r * a.strides[rank] + l * a.strides[rank + 1]];
                        let b = b.data[at_b + l * b.strides[rank] + c * b.strides[rank + 1]];
                        a as f64 * b as f64
                    })
                    .sum();
                let out = &mut out[(i * m + r) * n + c];
                *out = sum as f32
                    + if write == Write::Accumulate {
                        *out
                    } else {
                        0.0
                    };
            }
        }
    }
}
