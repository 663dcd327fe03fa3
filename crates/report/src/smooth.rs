//! Exponential moving averages, as every tracker draws them over raw losses.

/// The running averages of `values`, of which each forgets its past at the rate `1 - weight` a value.
///
/// Averages are over what there has been so far (the bias towards 0 of the first is taken out, as in Adam: Kingma and
/// Ba 2014, arXiv:1412.6980). Values that are not finite stay as they are and count for none.
pub fn smoothed(values: impl IntoIterator<Item = f64>, weight: f64) -> Vec<f64> {
    let (mut sum, mut share) = (0.0, 0.0);
    let average = |value: f64| {
        if !value.is_finite() {
            return value;
        }
        sum = weight * sum + (1.0 - weight) * value;
        share = weight * share + (1.0 - weight);
        sum / share
    };
    values.into_iter().map(average).collect()
}

/// A weight that averages over about one in fifty of `count` values.
pub fn usual_weight(count: usize) -> f64 {
    1.0 - 1.0 / (count as f64 / 50.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_begin_at_the_first_value_and_pass_over_holes() {
        assert_eq!(smoothed([4.0, 4.0, 4.0], 0.9), [4.0; 3]);
        let got = smoothed([1.0, f64::NAN, 2.0], 0.5);
        assert!(got[0] == 1.0 && got[1].is_nan());
        // (0.5 * 0.5 * 1 + 0.5 * 2) / (0.25 + 0.5)
        assert!((got[2] - 1.25 / 0.75).abs() < 1e-12, "{got:?}");
    }

    #[test]
    fn few_values_are_not_smoothed() {
        assert_eq!(usual_weight(10), 0.0);
        assert_eq!(smoothed([3.0, 1.0], usual_weight(2)), [3.0, 1.0]);
        assert!((usual_weight(5000) - 0.99).abs() < 1e-12);
    }
}
