//! Vector code without intrinsics: plain loops, compiled for the instruction set of this machine.
//!
//! [`vectorize!`] compiles a function once per instruction set (baseline, AVX2, AVX-512; NEON is baseline on
//! aarch64) and picks one at run time. Inside, loops over slices and arrays of [`LANES`] numbers become
//! vector instructions. Functions called inside must be `#[inline(always)]`, or they are compiled for the
//! baseline. Lane counts do not follow the register width and fused multiply-adds are written out, so these
//! loops give the same bits on every instruction set; only the matrix products do not.

use std::sync::LazyLock;

use crate::element::{Element, in_type};

/// Lanes of the accumulators in reductions: one AVX-512 register.
pub(crate) const LANES: usize = 16;

/// What [`vectorize!`] distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Baseline,
}

/// The best instruction set that this machine has.
pub(crate) fn detected() -> Isa {
    static ISA: LazyLock<Isa> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma");
            let avx512 =
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if avx2 && avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    });
    #[cfg(test)]
    if let Some(isa) = tests::FORCED.get() {
        return isa;
    }
    *ISA
}

/// Whether this machine multiplies pairs of bf16 numbers (AVX512-BF16).
pub(crate) fn has_bf16_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return detected() == Isa::Avx512 && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instruction set that the kernels use on this machine. Results are the same bits for any number of
/// threads, but may differ between instruction sets.
pub fn isa() -> &'static str {
    match detected() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has_bf16_products() => "avx512_bf16",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "avx512",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "avx2",
        Isa::Baseline if cfg!(target_arch = "aarch64") => "neon",
        Isa::Baseline => "baseline",
    }
}

/// Defines a function whose body is compiled for each instruction set and chosen at run time.
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
            #[allow(clippy::too_many_arguments)]
            fn body$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? {
                body$(::<$($generic),+>)?($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2$(<$($generic: $bound),+>)?($($argument: $type),*) $(-> $result)? {
                body$(::<$($generic),+>)?($($argument),*)
            }

            match $crate::simd::detected() {
                // SAFETY: this machine has the instructions, or they would not have been detected.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512$(::<$($generic),+>)?($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { avx2$(::<$($generic),+>)?($($argument),*) },
                $crate::simd::Isa::Baseline => body$(::<$($generic),+>)?($($argument),*),
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
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const LN2_HIGH: f32 = 0.693_359_4; // exact in 10 bits, so n * LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.336_54, 88.722_83);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, clamped);
    let r = n.mul_add(-LN2_LOW, r);
    let p = (1.0 / 5040.0f32).mul_add(r, 1.0 / 720.0);
    let p = p.mul_add(r, 1.0 / 120.0);
    let p = p.mul_add(r, 1.0 / 24.0);
    let p = p.mul_add(r, 1.0 / 6.0);
    let p = p.mul_add(r, 0.5);
    let p = (p * r).mul_add(r, r) + 1.0;
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
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
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
pub(crate) fn dot_in<C: Element, A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    const WIDE: usize = 4 * LANES;
    let mut wide = [0.0; WIDE];
    let (a_whole, a_rest) = a.as_chunks::<WIDE>();
    let (b_whole, b_rest) = b.as_chunks::<WIDE>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        // One flat loop: over nested arrays of lanes the compiler makes scalars of it.
        for i in 0..WIDE {
            wide[i] = in_type::<C, A>(a[i]).mul_add(in_type::<C, B>(b[i]), wide[i]);
        }
    }
    for ((sum, a), b) in wide.iter_mut().zip(a_rest).zip(b_rest) {
        *sum = in_type::<C, A>(*a).mul_add(in_type::<C, B>(*b), *sum);
    }
    sum_lanes(std::array::from_fn(|i| {
        (wide[i] + wide[i + LANES]) + (wide[i + 2 * LANES] + wide[i + 3 * LANES])
    }))
}

/// `a . b`.
#[inline(always)]
pub(crate) fn dot<A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    dot_in::<f32, A, B>(a, b)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
    }

    /// Runs `f` once for every instruction set of this machine; it must stay on this thread.
    pub(crate) fn on_each_isa<R>(f: impl Fn() -> R) -> Vec<R> {
        let best = detected();
        let mut all = vec![Isa::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend([Isa::Avx2].iter().filter(|_| best != Isa::Baseline));
            all.extend([Isa::Avx512].iter().filter(|isa| **isa == best));
        }
        let on = |isa: &Isa| {
            FORCED.set(Some(*isa));
            f()
        };
        let results = all.iter().map(on).collect();
        FORCED.set(None);
        results
    }

    /// Distance of `got` from the true value in units of the last place of the f32 nearest to it.
    fn ulps(got: f32, truth: f64) -> f64 {
        let nearest = truth as f32;
        let ulp = (nearest.next_up() - nearest) as f64;
        (got as f64 - truth).abs() / ulp
    }

    vectorize! {
        fn all_exp(xs: &mut [f32]) {
            for x in xs {
                *x = exp(*x);
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
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(88.722).is_finite() && exp(-87.33) > 0.0);
    }

    #[test]
    fn dot_products_cover_every_element() {
        for len in [0, 1, 15, 16, 17, 33, 64, 100, 150] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let ones = vec![1.0f32; len];
            assert_eq!(dot(&x, &ones), (0..len).sum::<usize>() as f32);
        }
    }
}
