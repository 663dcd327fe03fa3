//! How values of one key stand on an axis.
//!
//! Numbers are placed by their value, on a logarithmic axis if they are positive and span a factor of ten or more
//! (learning rates); any other values stand side by side in the order they are given in.

/// An axis for some values.
#[derive(Debug, PartialEq)]
pub(crate) enum Axis {
    Numbers { is_log: bool },
    Names(Vec<String>),
}

impl Axis {
    pub(crate) fn of(values: &[&str]) -> Self {
        let numbers: Option<Vec<f64>> = values.iter().map(|value| finite(value)).collect();
        if let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            return Self::Numbers {
                is_log: least > 0.0 && greatest >= 10.0 * least,
            };
        }
        let mut names: Vec<String> = Vec::new();
        for value in values {
            if !names.iter().any(|name| name == value) {
                names.push((*value).to_owned());
            }
        }
        Self::Names(names)
    }

    /// Where on the axis a value is: the number itself, or which of the names.
    pub(crate) fn place(&self, value: &str) -> Option<f64> {
        match self {
            Self::Numbers { .. } => finite(value),
            Self::Names(names) => Some(names.iter().position(|name| name == value)? as f64),
        }
    }
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_stand_on_a_logarithmic_axis_and_close_numbers_on_a_linear_one() {
        let rates = Axis::of(&["1e-5", "1e-3", "1e-4"]);
        assert_eq!(rates, Axis::Numbers { is_log: true });
        assert_eq!(rates.place("1e-4"), Some(1e-4));
        assert_eq!(Axis::of(&["1", "2", "5"]), Axis::Numbers { is_log: false });
        assert_eq!(Axis::of(&["-1", "50"]), Axis::Numbers { is_log: false });
    }

    #[test]
    fn names_stand_side_by_side() {
        let axis = Axis::of(&["cosine", "3", "cosine"]);
        assert_eq!(axis.place("cosine"), Some(0.0));
        assert_eq!(axis.place("3"), Some(1.0));
        assert_eq!(axis.place("4"), None);
    }
}
