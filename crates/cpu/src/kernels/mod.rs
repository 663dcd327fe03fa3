//! The kernels, one family a file, on checked slices.

pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gelu;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod optimizer;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod swiglu;
#[cfg(test)]
mod task_counts;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::tests::on_each_isa;
    use crate::{Gelu, RngKey, Write};

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
        let bias = dy[..dim].to_vec();
        let mut mean = vec![0.0; rows];
        layer_norm::forward(&x, &weight, &bias, 1e-5, &mut y, &mut mean, &mut inv);
        results.extend([&y, &mean, &inv].map(|x| x.to_vec()));
        let saved = layer_norm::Saved {
            x: &x,
            weight: &weight,
            mean: &mean,
            inv_std: &inv,
        };
        let (dw, db) = (&mut sums, &mut vec![0.0; dim]);
        layer_norm::backward(
            saved,
            &dy,
            Some(&mut z),
            Some((dw, Write::Assign)),
            Some((db, Write::Assign)),
        );
        results.extend([&z, &*dw, &*db].map(|x| x.to_vec()));
        for form in [Gelu::Erf, Gelu::Tanh] {
            gelu::forward(form, &x, &mut y);
            gelu::backward(form, &x, &dy, &mut z);
            results.extend([&y, &z].map(|x| x.to_vec()));
        }
        random::dropout(&x, 0.3, rng, &mut y);
        reduce::sum_rows(&y, &mut sums, Write::Accumulate);
        results.extend([&y, &sums].map(|x| x.to_vec()));
        results.push(vec![reduce::sum_squares(&y)]);
        results.concat().iter().map(|x| x.to_bits()).collect()
    }

    /// f32 products of all cuts, small enough to stay on one thread.
    fn products() -> Vec<u32> {
        let (m, k, n) = (20, 500, 70);
        let [mut a, mut b] = [m * k, k * n].map(|len| vec![0.0; len]);
        for (stream, x) in [&mut a, &mut b].into_iter().enumerate() {
            let stream = stream as u64;
            random::fill_normal(x, 0.0, 1.0, RngKey { key: 7, stream });
        }
        let mut out = vec![0.0; m * n];
        let mut bits = Vec::new();
        for a_strides in [[k, 1], [1, m]] {
            for b_strides in [[n, 1], [1, k]] {
                let a = matmul::Operand {
                    data: &a,
                    strides: &a_strides,
                };
                let b = matmul::Operand {
                    data: &b,
                    strides: &b_strides,
                };
                matmul::batched(&[], a, b, (m, k, n), &mut out, Write::Assign);
                bits.extend(out.iter().map(|x: &f32| x.to_bits()));
            }
        }
        bits
    }

    /// The generic one need not fuse.
    #[test]
    fn products_give_the_same_bits_on_every_instruction_set_but_the_generic() {
        let results = on_each_isa(products);
        for result in results.iter().skip(2) {
            assert!(*result == results[1]);
        }
    }

    #[test]
    fn vector_code_gives_the_same_bits_on_every_instruction_set() {
        let results = on_each_isa(vector_code);
        for result in &results[1..] {
            assert!(*result == results[0]);
        }
    }
}
