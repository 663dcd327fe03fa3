//! Where values stand on an axis.
//!
//! Numbers are placed on a line, on a logarithmic one if they are positive and span a factor of ten or more (learning
//! rates); any other values stand side by side in the order they are given in.

use crate::number;

/// Where values stand, from 0 to 1.
pub(crate) struct Axis {
    scale: Scale,
    /// Where to put a mark, and what to write at it.
    pub(crate) ticks: Vec<(f64, String)>,
}

enum Scale {
    /// From the least to the greatest value, of their logarithms if `is_log`.
    Numbers {
        least: f64,
        greatest: f64,
        is_log: bool,
    },
    Names(Vec<String>),
}

impl Axis {
    pub(crate) fn of_values(values: &[&str]) -> Self {
        let numbers: Option<Vec<f64>> = values.iter().map(|value| finite(value)).collect();
        if let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
            return Self::of_numbers(&numbers, true);
        }
        let mut names: Vec<String> = Vec::new();
        for value in values {
            if !names.iter().any(|name| name == value) {
                names.push((*value).to_owned());
            }
        }
        let mut axis = Self {
            ticks: Vec::new(),
            scale: Scale::Names(names.clone()),
        };
        let tick = |name: String| Some((axis.place(&name)?, name));
        axis.ticks = names.into_iter().filter_map(tick).collect();
        axis
    }

    pub(crate) fn of_numbers(numbers: &[f64], may_be_log: bool) -> Self {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_log = may_be_log && least > 0.0 && greatest >= 10.0 * least;
        let scale = Scale::Numbers {
            least,
            greatest,
            is_log,
        };
        let mut axis = Self {
            scale,
            ticks: Vec::new(),
        };
        let middle = if is_log {
            (least * greatest).sqrt()
        } else {
            (least + greatest) / 2.0
        };
        let mut marks = vec![least, middle, greatest];
        marks.dedup();
        let tick = |mark: f64| (axis.place_number(mark), number::mark(mark));
        axis.ticks = marks.into_iter().map(tick).collect();
        axis
    }

    pub(crate) fn place(&self, value: &str) -> Option<f64> {
        match &self.scale {
            Scale::Numbers { .. } => Some(self.place_number(finite(value)?)),
            Scale::Names(names) => {
                let index = names.iter().position(|name| name == value)?;
                Some((index as f64 + 0.5) / names.len() as f64)
            }
        }
    }

    pub(crate) fn place_number(&self, number: f64) -> f64 {
        let Scale::Numbers {
            least,
            greatest,
            is_log,
        } = self.scale
        else {
            return 0.5;
        };
        let scale = |x: f64| if is_log { x.ln() } else { x };
        let (low, high) = (scale(least), scale(greatest));
        if high > low {
            // A dot at either end stands clear of the frame.
            0.06 + 0.88 * (scale(number) - low) / (high - low)
        } else {
            0.5
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
    fn learning_rates_stand_on_a_logarithmic_axis() {
        let axis = Axis::of_values(&["1e-5", "1e-3", "1e-4"]);
        let places: Vec<_> = ["1e-5", "1e-4", "1e-3"]
            .iter()
            .map(|value| axis.place(value).unwrap())
            .collect();
        assert!((places[0] - 0.06).abs() < 1e-9, "{places:?}");
        assert!((places[1] - 0.5).abs() < 1e-9, "{places:?}");
        assert!((places[2] - 0.94).abs() < 1e-9, "{places:?}");
    }

    #[test]
    fn close_numbers_stand_on_a_linear_axis() {
        let axis = Axis::of_values(&["1", "2", "5"]);
        assert!((axis.place("2").unwrap() - (0.06 + 0.88 / 4.0)).abs() < 1e-9);
    }

    #[test]
    fn names_stand_side_by_side() {
        let axis = Axis::of_values(&["cosine", "3", "cosine"]);
        assert_eq!(axis.place("cosine"), Some(0.25));
        assert_eq!(axis.place("3"), Some(0.75));
    }

    #[test]
    fn one_value_stands_in_the_middle() {
        assert_eq!(Axis::of_values(&["7", "7"]).place("7"), Some(0.5));
    }
}
