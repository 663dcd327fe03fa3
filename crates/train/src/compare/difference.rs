//! How far two tensors of one shape are apart. Sums are f64.

use serde::Serialize;

/// What two tensors, `a` and `b`, differ by. Elements that are not finite in both are left out of all but the counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Largest |a - b|, and where it is: the index of the element, row by row, and its two values.
    pub max_abs: f64,
    /// Where that is: the index of the element, row by row.
    pub at: usize,
    /// Its value in `a` and in `b`.
    pub values_at: [f32; 2],
    /// |a - b| over the greater of |a| and |b|, as L2 norms; 0 if both are zero.
    pub relative_l2: f64,
    /// Of the angle between them; `None` if one is zero.
    pub cosine: Option<f64>,
    /// Largest |a| and largest |b|.
    pub largest: [f64; 2],
    /// L2 norms of a, b and a - b.
    pub norms: [f64; 3],
    /// NaN and infinite elements of a and of b.
    pub non_finite: [usize; 2],
    /// Elements that are finite in one only, or not finite in two ways.
    pub unlike: usize,
    /// Every element has the same value.
    pub is_equal: bool,
}

impl Difference {
    /// Of `a` and `b`, which have the same length.
    pub fn between(a: &[f32], b: &[f32]) -> Self {
        Self::beyond(a, b, |_| 0.0)
    }

    /// Element `i` counts as equal within `slack(i)`, and as that much nearer beyond it.
    pub(super) fn beyond(a: &[f32], b: &[f32], slack: impl Fn(usize) -> f64) -> Self {
        let mut it = Self {
            max_abs: 0.0,
            at: 0,
            values_at: [0.0; 2],
            relative_l2: 0.0,
            cosine: None,
            largest: [0.0; 2],
            norms: [0.0; 3],
            non_finite: [0; 2],
            unlike: 0,
            is_equal: true,
        };
        let (mut squares, mut product) = ([0.0; 3], 0.0);
        for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
            for (count, value) in it.non_finite.iter_mut().zip([x, y]) {
                *count += usize::from(!value.is_finite());
            }
            if !x.is_finite() || !y.is_finite() {
                let is_alike = x == y || (x.is_nan() && y.is_nan());
                it.unlike += usize::from(!is_alike);
                it.is_equal &= is_alike;
                continue;
            }
            it.is_equal &= x == y;
            let (wide_x, wide_y) = (f64::from(x), f64::from(y));
            let apart = ((wide_x - wide_y).abs() - slack(i)).max(0.0);
            if apart > it.max_abs || i == 0 {
                (it.max_abs, it.at, it.values_at) = (apart, i, [x, y]);
            }
            for (largest, value) in it.largest.iter_mut().zip([wide_x, wide_y]) {
                *largest = largest.max(value.abs());
            }
            for (sum, value) in squares.iter_mut().zip([wide_x, wide_y, apart]) {
                *sum += value * value;
            }
            product += wide_x * wide_y;
        }
        it.norms = squares.map(f64::sqrt);
        let [norm_a, norm_b, _] = it.norms;
        it.relative_l2 = it.relative_to(0.0);
        it.cosine =
            (norm_a > 0.0 && norm_b > 0.0).then(|| (product / (norm_a * norm_b)).clamp(-1.0, 1.0));
        it
    }

    /// |a - b| over the greatest of |a|, |b| and `floor`; infinite if elements are unlike.
    pub(super) fn relative_to(&self, floor: f64) -> f64 {
        let [norm_a, norm_b, norm] = self.norms;
        match norm {
            _ if self.unlike > 0 => f64::INFINITY,
            0.0 => 0.0,
            _ => norm / norm_a.max(norm_b).max(floor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_measured_in_norm_angle_and_worst_element() {
        let it = Difference::between(&[3.0, 4.0], &[3.0, -4.0]);
        assert_eq!(it.norms, [5.0, 5.0, 8.0]);
        assert_eq!((it.max_abs, it.at, it.values_at), (8.0, 1, [4.0, -4.0]));
        assert_eq!(it.relative_l2, 1.6);
        assert_eq!(it.cosine, Some(-7.0 / 25.0));
        assert_eq!(it.largest, [4.0, 4.0]);
        assert!(!it.is_equal);
    }

    #[test]
    fn zeros_are_equal_to_zeros_and_far_from_anything_else() {
        let it = Difference::between(&[0.0, -0.0], &[0.0, 0.0]);
        assert_eq!((it.relative_l2, it.cosine, it.is_equal), (0.0, None, true));
        let it = Difference::between(&[0.0, 0.0], &[0.0, 1e-30]);
        assert_eq!((it.relative_l2, it.cosine), (1.0, None));
        let nothing = Difference::between(&[], &[]);
        assert_eq!((nothing.relative_l2, nothing.is_equal), (0.0, true));
    }

    #[test]
    fn what_is_not_finite_must_be_so_in_both_and_in_the_same_way() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let alike = Difference::between(&[nan, inf, 1.0], &[nan, inf, 1.0]);
        assert_eq!(
            (alike.unlike, alike.non_finite, alike.is_equal),
            (0, [2, 2], true)
        );
        assert_eq!((alike.max_abs, alike.relative_to(0.0)), (0.0, 0.0));
        let unlike = Difference::between(&[nan, inf, 1.0, 2.0], &[inf, -inf, nan, 2.0]);
        assert_eq!((unlike.unlike, unlike.non_finite), (3, [2, 3]));
        assert_eq!(unlike.relative_to(1.0), f64::INFINITY);
    }

    #[test]
    fn a_floor_keeps_noise_from_counting() {
        let it = Difference::between(&[1e-9, 0.0], &[0.0, 1e-9]);
        assert!(it.relative_l2 > 1.0);
        assert!(it.relative_to(1e-2) < 1e-6);
    }

    #[test]
    fn slack_takes_off_what_rounding_explains() {
        let it = Difference::beyond(&[1.0, 2.0], &[1.5, 2.0], |_| 0.5);
        assert_eq!((it.max_abs, it.norms[2]), (0.0, 0.0));
        let it = Difference::beyond(&[1.0, 2.0], &[1.5, 2.0], |_| 0.25);
        assert_eq!(it.max_abs, 0.25);
    }
}
