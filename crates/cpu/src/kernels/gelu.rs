//! GELU: `y = x P(N < x)`, N normal, by the error function or by the hyperbolic tangent in its place.
//!
//! Erf: `P = (1 + erf(x / sqrt 2)) / 2`, `dx = dy (P + x p)` with the density `p = e^(-x^2/2) / sqrt(2 pi)`.
//! Tanh: `P = (1 + tanh(u)) / 2 = sigmoid(2u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`, `dx = dy (P + x P (1 - P) 2u')`.
//! Layouts: dense f32, bf16 or f16.
//! Numeric notes: f32 inside. In the erf form `y` is within 4.5e-7 of itself, however small it is: `P` is made of the
//! exponential that the density needs anyway, and never as a difference of nearly equal numbers. Infinities give their
//! limits, where a formula as it stands would multiply them by 0.
//! Reference: [`crate::reference::gelu`]. Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.

use crate::Gelu;
use crate::element::Element;
use crate::par;
use crate::simd::{self, MulAdd, vectorize};

pub(crate) fn forward<T: Element>(form: Gelu, x: &[T], y: &mut [T]) {
    par::elementwise(y, |y, first| {
        let x = &x[first..][..y.len()];
        match form {
            Gelu::Erf => forward_piece::<Erf, T>(x, y),
            Gelu::Tanh => forward_piece::<Tanh, T>(x, y),
        }
    });
}

pub(crate) fn backward<T: Element>(form: Gelu, x: &[T], dy: &[T], dx: &mut [T]) {
    par::elementwise(dx, |dx, first| {
        let [x, dy] = [x, dy].map(|x| &x[first..][..dx.len()]);
        match form {
            Gelu::Erf => backward_piece::<Erf, T>(x, dy, dx),
            Gelu::Tanh => backward_piece::<Tanh, T>(x, dy, dx),
        }
    });
}

vectorize! {
    fn forward_piece<G: Form, T: Element>(x: &[T], y: &mut [T]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = T::round(G::value::<F>(x.widen()));
        }
    }
}

vectorize! {
    fn backward_piece<G: Form, T: Element>(x: &[T], dy: &[T], dx: &mut [T]) {
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            *dx = T::round(dy.widen() * G::slope::<F>(x.widen()));
        }
    }
}

/// One of the two forms, at a point. NaN gives NaN.
trait Form {
    fn value<F: MulAdd>(x: f32) -> f32;
    fn slope<F: MulAdd>(x: f32) -> f32;
}

struct Erf;

impl Form for Erf {
    #[inline(always)]
    fn value<F: MulAdd>(x: f32) -> f32 {
        not_below(x) * below::<F>(x).0
    }

    #[inline(always)]
    fn slope<F: MulAdd>(x: f32) -> f32 {
        const DENSITY_AT_0: f32 = 0.398_942_3; // 1 / sqrt(2 pi)
        let (below, exp) = below::<F>(x);
        // No further than the exponential reaches: its 0 times infinity would be no number.
        F::mul_add(within(x) * DENSITY_AT_0, exp, below)
    }
}

/// Beyond this `e^(-x^2/2)` is 0 in f32.
const FAR: f32 = 14.0;

/// `x`, or what of `+-FAR` is nearer.
#[inline(always)]
fn within(x: f32) -> f32 {
    x.clamp(-FAR, FAR)
}

/// `x`, or `-FAR` if that is more: what is multiplied by 0 must be finite.
#[inline(always)]
fn not_below(x: f32) -> f32 {
    if x < -FAR { -FAR } else { x }
}

/// `P(N < x)` and `e^(-x^2/2)`.
///
/// `P(N < -a) = e^(-a^2/2) r p(q)` with `r = 1 / (a + k)`, `q = (a - k) r` and a polynomial of degree 8, fitted on [0, 13.3] for
/// the least relative error, 1.5e-8 before rounding; `k` is where that is smallest.
#[inline(always)]
fn below<F: MulAdd>(x: f32) -> (f32, f32) {
    const K: f32 = 3.75;
    const P: [f32; 9] = [
        0.750_294_1,
        -0.588_188_23,
        0.352_939_52,
        -0.151_520_98,
        0.037_492_52,
        0.001_200_111_4,
        -0.004_169_108_3,
        0.000_509_442_76,
        0.000_443_369_2,
    ];
    let a = within(x).abs();
    let half = 0.5 * a;
    let square = half * a;
    // What the square has lost by rounding: up to 4e-6, which the exponential would be off by.
    let lost = F::mul_add(half, a, -square);
    let exp = simd::exp::<F>(-square);
    let exp = F::mul_add(-lost, exp, exp);
    let r = 1.0 / (a + K);
    let q = F::mul_add(-2.0 * K, r, 1.0);
    let mut p = P[8];
    for coefficient in P[..8].iter().rev() {
        p = F::mul_add(p, q, *coefficient);
    }
    let tail = exp * (r * p);
    (if x < 0.0 { tail } else { 1.0 - tail }, exp)
}

struct Tanh;

/// `2 sqrt(2/pi)`, and that times 0.044715.
const TWICE: f32 = 1.595_769;
const TWICE_CUBIC: f32 = 0.071_354_816;

impl Form for Tanh {
    #[inline(always)]
    fn value<F: MulAdd>(x: f32) -> f32 {
        let twice = x * F::mul_add(x * x, TWICE_CUBIC, TWICE);
        not_below(x) * simd::sigmoid::<F>(twice)
    }

    #[inline(always)]
    fn slope<F: MulAdd>(x: f32) -> f32 {
        let x = within(x);
        let square = x * x;
        let twice = x * F::mul_add(square, TWICE_CUBIC, TWICE);
        let exp = simd::exp::<F>(-twice);
        let s = 1.0 / (1.0 + exp);
        // 1 - s keeps its digits where s is nearly 1; an infinite exponential belongs to an s of 0.
        let rest = s * if exp < f32::MAX { exp } else { f32::MAX };
        let inner = x * F::mul_add(square, 3.0 * TWICE_CUBIC, TWICE);
        F::mul_add(inner * rest, s, s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::tests::on_each_isa;
    use crate::reference;

    /// Both signs from 1e-10 to 40, 256 numbers between powers of two, and the ends: few enough for one thread.
    fn arguments() -> Vec<f32> {
        let step = 1 << 15;
        let (first, last) = (1e-10f32.to_bits(), 40f32.to_bits());
        let sizes = (first..last).step_by(step).map(f32::from_bits);
        let mut all: Vec<f32> = sizes.flat_map(|x| [x, -x]).collect();
        all.extend([0.0, -0.0, 1e-40, 1e30, -1e30, f32::MAX, f32::MIN]);
        all
    }

    /// `value` and `slope`, each with a gradient of 1.
    fn both(form: Gelu, x: &[f32]) -> [Vec<f32>; 2] {
        let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
        forward(form, x, &mut y);
        backward(form, x, &vec![1.0; x.len()], &mut dx);
        [y, dx]
    }

    #[test]
    fn the_erf_form_has_the_digits_of_f32_wherever_it_is_not_0() {
        let x = arguments();
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let want = reference::gelu(Gelu::Erf, &wide);
        let slopes = reference::gelu_backward(Gelu::Erf, &wide, &vec![1.0; x.len()]);
        on_each_isa(|| {
            let [y, dx] = both(Gelu::Erf, &x);
            for i in 0..x.len() {
                // Of subnormal size, 0 is as good.
                let allowed = 4.5e-7 * want[i].abs() + 2e-37;
                let error = (f64::from(y[i]) - want[i]).abs();
                assert!(
                    error <= allowed,
                    "gelu({}): {} instead of {}",
                    x[i],
                    y[i],
                    want[i]
                );
                // A difference near -0.75, where it is 0.
                let error = (f64::from(dx[i]) - slopes[i]).abs();
                assert!(
                    error <= 3e-7,
                    "gelu'({}): {} instead of {}",
                    x[i],
                    dx[i],
                    slopes[i]
                );
            }
        });
    }

    #[test]
    fn the_tanh_form_is_as_close_as_its_exponent_can_be_rounded() {
        let x = arguments();
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let want = reference::gelu(Gelu::Tanh, &wide);
        let slopes = reference::gelu_backward(Gelu::Tanh, &wide, &vec![1.0; x.len()]);
        on_each_isa(|| {
            let [y, dx] = both(Gelu::Tanh, &x);
            for i in 0..x.len() {
                let allowed = 3e-7 * want[i].abs() + 1e-7;
                let error = (f64::from(y[i]) - want[i]).abs();
                assert!(
                    error <= allowed,
                    "gelu({}): {} instead of {}",
                    x[i],
                    y[i],
                    want[i]
                );
                let error = (f64::from(dx[i]) - slopes[i]).abs();
                assert!(
                    error <= 8e-7,
                    "gelu'({}): {} instead of {}",
                    x[i],
                    dx[i],
                    slopes[i]
                );
            }
        });
    }

    #[test]
    fn infinities_give_their_limits_and_what_is_no_number_stays_none() {
        on_each_isa(|| {
            for form in [Gelu::Erf, Gelu::Tanh] {
                let [y, dx] = both(form, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
                assert!(y[0].is_nan() && dx[0].is_nan(), "{form:?}");
                assert_eq!((y[1], dx[1]), (f32::INFINITY, 1.0), "{form:?}");
                assert_eq!((y[2], dx[2].abs() < 1e-30), (0.0, true), "{form:?}");
            }
        });
    }
}
