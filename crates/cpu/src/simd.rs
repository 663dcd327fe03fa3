//! Vector code without intrinsics: loops over fixed lanes, compiled for the instruction set of this machine.
//!
//! [`run`] compiles its closure once per instruction set (baseline, AVX2, AVX-512; NEON is baseline on
//! aarch64) and picks one at run time. Inside, plain loops over slices and arrays of [`LANES`] numbers
//! become vector instructions. Everything called inside must be `#[inline(always)]`, or it is compiled for the
//! baseline. Lane counts do not follow the register width and fused multiply-adds are written out, so these
//! loops give the same bits on every instruction set; only the matrix products do not.

use std::sync::LazyLock;

use pulp::Arch;

/// Lanes of the accumulators in reductions: one AVX-512 register.
pub(crate) const LANES: usize = 16;

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// The instruction set that the kernels use on this machine. Results are the same bits for any number of
/// threads, but may differ between instruction sets.
pub fn isa() -> &'static str {
    match *ARCH {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => "avx512",
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => "avx2",
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(_) => "neon",
        _ => "scalar",
    }
}

/// Runs `f` compiled for the best instruction set that this machine has.
#[inline(always)]
pub(crate) fn run<R>(f: impl FnOnce() -> R) -> R {
    ARCH.dispatch(f)
}

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
    let two_to = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    let value = p * two_to(half) * two_to(n - half);
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
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `sum_i f(i)` for `i` in `0..len`, in [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn sum(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = len - len % LANES;
    let mut i = 0;
    while i < whole {
        for lane in 0..LANES {
            lanes[lane] += f(i + lane);
        }
        i += LANES;
    }
    for lane in 0..len - whole {
        lanes[lane] += f(whole + lane);
    }
    sum_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of `got` from the true value in units of the last place of the f32 nearest to it.
    fn ulps(got: f32, truth: f64) -> f64 {
        let nearest = truth as f32;
        let ulp = (nearest.next_up() - nearest) as f64;
        (got as f64 - truth).abs() / ulp
    }

    #[test]
    fn exp_is_within_1_1_ulp() {
        let mut worst = (0.0, 0.0);
        let mut xs: Vec<f32> = (0..4_000_000).map(|i| -87.3 + i as f32 * 4.4e-5).collect();
        let mut results = xs.clone();
        run(|| {
            for (y, x) in results.iter_mut().zip(&mut xs) {
                *y = exp(*x);
            }
        });
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
    fn sums_cover_every_element() {
        for len in [0, 1, 15, 16, 17, 33, 100] {
            assert_eq!(sum(len, |i| i as f32), (0..len).sum::<usize>() as f32);
        }
    }
}
