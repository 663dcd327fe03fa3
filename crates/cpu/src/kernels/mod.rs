//! The kernels, one family a file, on checked slices.

pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod matmul;
pub(crate) mod optimizer;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod swiglu;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;
    use crate::{RngKey, Write};

    /// Everything but matrix products, small enough to stay on one thread.
    fn vector_code() -> Vec<u32> {
        let (rows, dim) = (7, 83);
        let rng = RngKey { key: 5, stream: 6 };
        let [mut x, mut y, mut z] = [(); 3].map(|()| vec![0.0; rows * dim]);
        let (mut inv, mut sums) = (vec![0.0; rows], vec![0.0; dim]);
        let mut results = Vec::new();
        random::fill_uniform(&mut y, -3.0, 3.0, rng);
        random::fill_normal(&mut x, 0.1, 2.0, rng);
        let (dy, weight) = (y.clone(), x[..dim].to_vec());
        rms_norm::forward(&x, &weight, 1e-6, &mut y, &mut inv);
        rms_norm::backward(
            &x,
            &weight,
            &inv,
            &dy,
            Some(&mut z),
            Some((&mut sums, Write::Assign)),
        );
        results.extend([&y, &z, &inv, &sums].map(|x| x.to_vec()));
        swiglu::forward(&x, &dy, &mut y);
        results.push(y.clone());
        swiglu::backward(&x, &dy, &weight.repeat(rows), &mut y, &mut z);
        results.extend([&y, &z].map(|x| x.to_vec()));
        random::dropout(&x, 0.3, rng, &mut y);
        reduce::sum_rows(&y, &mut sums, Write::Accumulate);
        results.extend([&y, &sums].map(|x| x.to_vec()));
        results.push(vec![reduce::sum_squares(&y)]);
        results.concat().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn vector_code_gives_the_same_bits_on_every_instruction_set() {
        let results = on_each_isa(vector_code);
        for result in &results[1..] {
            assert!(*result == results[0]);
        }
    }
}
