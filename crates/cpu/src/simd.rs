//! Vector code without intrinsics: plain loops, compiled for each instruction set.
//!
//! [`vectorize!`] compiles a function once per instruction set (generic, AVX2, AVX-512) and takes the one of [`crate::Isa`]
//! that is in use. Inside, loops over slices and arrays of [`LANES`] numbers become vector instructions. Functions
//! called inside must be `#[inline(always)]`, or they are compiled for any processor. Lane counts do not follow the
//! register width and fused multiply-adds are written out (`F::mul_add`, see [`MulAdd`]), so these loops give the same
//! bits on every instruction set. Matrix products do too, but on the generic one, and those of bf16 pairs.

use crate::element::{Element, in_type};

/// Lanes of the accumulators in reductions: one AVX-512 register.
pub(crate) const LANES: usize = 16;

/// How a kernel multiplies and adds with one rounding: [`vectorize!`] gives each of its bodies the way of the instruction
/// set that it is compiled for.
pub(crate) trait MulAdd {
    /// `a * b + c`, rounded once.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One instruction.
pub(crate) struct Fused;

impl MulAdd for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// In f64, for processors without that instruction: there [`f32::mul_add`] calls a library for every number. About 25
/// operations, without branches, so that they become vector code.
pub(crate) struct Emulated;

impl MulAdd for Emulated {
    /// The product is exact. Its sum with `c` is rounded to odd, that is, of the two numbers around an inexact sum the odd
    /// one is taken: then rounding once more, to f32, gives what rounding the exact sum gives.
    /// Source: Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded sums".
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        let (product, c) = (a as f64 * b as f64, c as f64);
        let sum = product + c;
        let of_c = sum - product;
        let error = (product - (sum - of_c)) + (c - of_c); // what the rounding of `sum` has lost, exactly
        let bits = sum.to_bits();
        let is_inexact = (error.abs() > 0.0) as u64; // not so for NaN, that of infinities
        let toward_zero = (bits ^ error.to_bits()) >> 63;
        let step = (is_inexact & !bits & 1).wrapping_mul(1u64.wrapping_sub(2 * toward_zero));
        f64::from_bits(bits.wrapping_add(step)) as f32
    }
}

/// The way of code that is compiled for every processor of the architecture.
#[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
pub(crate) type Generic = Fused;
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
pub(crate) type Generic = Emulated;

/// Defines a function whose body is compiled for each instruction set and chosen at run time. In the body `F` is the
/// [`MulAdd`] of the instruction set.
macro_rules! vectorize {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)?(
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $result:ty)? $body:block
    ) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, clippy::extra_unused_type_parameters)]
            fn body<F: $crate::simd::MulAdd $(, $($generic: $bound),+)?>(
                $($argument: $type),*
            ) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? {
                body::<$crate::simd::Fused $(, $($generic),+)?>($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? {
                body::<$crate::simd::Fused $(, $($generic),+)?>($($argument),*)
            }

            match $crate::isa::in_use() {
                // SAFETY: this machine has the instructions, or they would not be in use.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 => unsafe {
                    avx512$(::<$($generic),+>)?($($argument),*)
                },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2$(::<$($generic),+>)?($($argument),*) },
                _ => body::<$crate::simd::Generic $(, $($generic),+)?>($($argument),*),
            }
        }
    };
}
pub(crate) use vectorize;

/// `e^x` for f32, branch-free. Error under 1.1 ulp on [-87.3, 88.7]; 0 below (where the true value is
/// subnormal), infinity above; NaN gives NaN.
///
/// With `n = round(x / ln 2)` and `r = x - n ln 2` (in two parts), `e^x = 2^n e^r`, and `e^r` on
/// [-0.35, 0.35] is its Taylor sum to degree 7 (the remainder is 1e-9).
#[inline(always)]
pub(crate) fn exp<F: MulAdd>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const LN2_HIGH: f32 = 0.693_359_4; // exact in 10 bits, so n * LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.336_54, 88.722_83);
    let shifted = F::mul_add(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = F::mul_add(n, -LN2_HIGH, clamped);
    let r = F::mul_add(n, -LN2_LOW, r);
    let p = F::mul_add(1.0 / 5040.0, r, 1.0 / 720.0);
    let p = F::mul_add(p, r, 1.0 / 120.0);
    let p = F::mul_add(p, r, 1.0 / 24.0);
    let p = F::mul_add(p, r, 1.0 / 6.0);
    let p = F::mul_add(p, r, 0.5);
    let p = F::mul_add(p * r, r, r) + 1.0;
    // 2^n in two factors, as n reaches 128. The low bits of `shifted` are n as an integer.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let two_to = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let value = p * two_to(half) * two_to(n.wrapping_sub(half));
    let value = if x < -87.336_54 { 0.0 } else { value };
    if x > 88.722_83 { f32::INFINITY } else { value }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<F: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<F>(-x))
}

/// Adds the lanes in a fixed order: pairwise, halves first.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; LANES / 2] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; LANES / 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// `a . b` of elements as `C` takes them, in four groups of [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn dot_in<F: MulAdd, C: Element, A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    const WIDE: usize = 4 * LANES;
    let mut wide = [0.0; WIDE];
    let (a_whole, a_rest) = a.as_chunks::<WIDE>();
    let (b_whole, b_rest) = b.as_chunks::<WIDE>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        // One flat loop: over nested arrays of lanes the compiler makes scalars of it.
        for i in 0..WIDE {
            wide[i] = F::mul_add(in_type::<C, A>(a[i]), in_type::<C, B>(b[i]), wide[i]);
        }
    }
    for ((sum, a), b) in wide.iter_mut().zip(a_rest).zip(b_rest) {
        *sum = F::mul_add(in_type::<C, A>(*a), in_type::<C, B>(*b), *sum);
    }
    sum_lanes(std::array::from_fn(|i| {
        (wide[i] + wide[i + LANES]) + (wide[i + 2 * LANES] + wide[i + 3 * LANES])
    }))
}

/// `a . b`.
#[inline(always)]
pub(crate) fn dot<F: MulAdd, A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    dot_in::<F, f32, A, B>(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::tests::on_each_isa;

    /// Distance of `got` from the true value in units of the last place of the f32 nearest to it.
    fn ulps(got: f32, truth: f64) -> f64 {
        let nearest = truth as f32;
        let ulp = (nearest.next_up() - nearest) as f64;
        (got as f64 - truth).abs() / ulp
    }

    vectorize! {
        fn all_exp(xs: &mut [f32]) {
            for x in xs {
                *x = exp::<F>(*x);
            }
        }
    }

    #[test]
    fn exp_is_within_1_1_ulp() {
        let mut worst = (0.0, 0.0);
        let xs: Vec<f32> = (0..4_000_000).map(|i| -87.3 + i as f32 * 4.4e-5).collect();
        let mut results = xs.clone();
        all_exp(&mut results);
        for (x, y) in xs.iter().zip(&results) {
            let error = ulps(*y, (*x as f64).exp());
            if error > worst.0 {
                worst = (error, *x);
            }
        }
        assert!(worst.0 < 1.1, "{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    fn exp_ends_in_zero_infinity_and_nan() {
        on_each_isa(|| {
            let mut x = [
                f32::NEG_INFINITY,
                -100.0,
                0.0,
                89.0,
                f32::INFINITY,
                f32::NAN,
                88.722,
                -87.33,
            ];
            all_exp(&mut x);
            assert_eq!(x[..5], [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]);
            assert!(x[5].is_nan());
            assert!(x[6].is_finite() && x[7] > 0.0);
        });
    }

    /// Numbers of every exponent and of few bits, so that sums cancel, tie and end among the subnormal ones.
    fn pattern(i: u64) -> f32 {
        let mut z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let keep = u32::MAX << (z >> 40 & 31);
        let bits = (z as u32 & keep & 0x807F_FFFF) | ((z >> 56) as u32) << 23;
        f32::from_bits(bits)
    }

    #[test]
    fn an_emulated_fused_multiply_add_is_the_fused_one_bit_for_bit() {
        let check = |a: f32, b: f32, c: f32| {
            let (got, want) = (Emulated::mul_add(a, b, c), a.mul_add(b, c));
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{a:e} * {b:e} + {c:e}: {got:e} instead of {want:e}");
        };
        for i in 0..2_000_000 {
            let [a, b, c] = [3 * i, 3 * i + 1, 3 * i + 2].map(pattern);
            check(a, b, c);
            // A sum of terms of like size, one that cancels, and one near the middle of two numbers.
            let product = a * b;
            check(a, b, product * c.clamp(-2.0, 2.0));
            check(a, b, -product);
            check(a, b, product * 2f32.powi(23 + (i % 5) as i32));
            check(a, b, product * 2f32.powi(-23 - (i % 5) as i32));
        }
        let special = [
            0.0,
            -0.0,
            1.0,
            f32::MIN_POSITIVE,
            1e-45,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        for a in special {
            for b in special {
                for c in special {
                    check(a, b, c);
                    check(a, b, -c);
                }
            }
        }
    }

    #[test]
    fn dot_products_cover_every_element() {
        for len in [0, 1, 15, 16, 17, 33, 64, 100, 150] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let ones = vec![1.0f32; len];
            let sum = (0..len).sum::<usize>() as f32;
            assert_eq!(dot::<Fused, _, _>(&x, &ones), sum);
            assert_eq!(dot::<Emulated, _, _>(&x, &ones), sum);
        }
    }
}
