//! The rows of `histograms.jsonl`: how the elements of gradients and weights are spread.
//!
//! A row is a step: `{"step":7,"histograms":[{"name":"gradients/PATH","min":..,"max":..,"sum":..,"sum_squares":..,
//! "counts":[..],"non_finite":0},..]}`. The bins are [`NUM_BINS`] of one width from `min` to `max`. Elements that are NaN
//! or infinite are counted in `non_finite` and in nothing else.

use serde::{Deserialize, Serialize};

/// Of each histogram.
pub const NUM_BINS: usize = 64;

/// How the elements of one tensor are spread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// `gradients/PATH` or `parameters/PATH`.
    pub name: String,
    /// The least finite element; 0 if there is none.
    pub min: f32,
    /// The greatest finite element; 0 if there is none.
    pub max: f32,
    /// Of the finite elements.
    pub sum: f64,
    /// Of the squares of the finite elements.
    pub sum_squares: f64,
    /// Finite elements by bin.
    pub counts: Vec<u64>,
    /// Elements that are NaN or infinite.
    pub non_finite: u64,
}

/// The histograms of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histograms {
    /// The step whose gradients these are; the weights are those before it.
    pub step: u64,
    /// By name, each once.
    pub histograms: Vec<Histogram>,
}

/// The least and the greatest of the finite ones; `None` if there is none.
pub fn bounds(values: &[f32]) -> Option<(f32, f32)> {
    let finite = values.iter().copied().filter(|x| x.is_finite());
    finite.fold(None, |bounds, x| {
        let (min, max) = bounds.unwrap_or((x, x));
        Some((min.min(x), max.max(x)))
    })
}

impl Histogram {
    /// Of `values`, in two passes over them.
    pub fn of(name: impl Into<String>, values: &[f32]) -> Self {
        Self::within(name, values, bounds(values))
    }

    /// Of `values`, a part of what has these [`bounds`].
    pub fn within(name: impl Into<String>, values: &[f32], bounds: Option<(f32, f32)>) -> Self {
        let mut histogram = Self {
            name: name.into(),
            counts: vec![0; NUM_BINS],
            ..Self::default()
        };
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        let mut count = 0;
        for x in finite() {
            histogram.sum += f64::from(x);
            histogram.sum_squares += f64::from(x) * f64::from(x);
            count += 1;
        }
        histogram.non_finite = (values.len() - count) as u64;
        let Some((min, max)) = bounds else {
            return histogram;
        };
        (histogram.min, histogram.max) = (min, max);
        let (low, width) = histogram.range();
        for x in finite() {
            let bin = ((f64::from(x) - low) / width * NUM_BINS as f64) as usize;
            histogram.counts[bin.min(NUM_BINS - 1)] += 1;
        }
        histogram
    }

    /// Adds what is counted of another part, within the same bounds.
    pub fn add(&mut self, part: &Self) {
        self.sum += part.sum;
        self.sum_squares += part.sum_squares;
        self.non_finite += part.non_finite;
        for (count, more) in self.counts.iter_mut().zip(&part.counts) {
            *count += more;
        }
    }

    /// The bounds of the bins: one more than there are of these.
    pub fn edges(&self) -> Vec<f64> {
        let (low, width) = self.range();
        let count = self.counts.len().max(1);
        let edge = |bin: usize| low + width * (bin as f64 / count as f64);
        (0..=count).map(edge).collect()
    }

    /// Where the bins begin, and how wide they are together: wider than nothing, also where all elements are equal.
    fn range(&self) -> (f64, f64) {
        let (min, max) = (f64::from(self.min), f64::from(self.max));
        if min < max {
            return (min, max - min);
        }
        let half = f64::max(0.5, min.abs() * 1e-3);
        (min - half, 2.0 * half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_by_bins_of_one_width() {
        let values: Vec<f32> = (0..640).map(|i| i as f32 / 10.0).collect();
        let histogram = Histogram::of("a", &values);
        assert_eq!((histogram.min, histogram.max), (0.0, 63.9));
        assert_eq!(histogram.counts, [10; NUM_BINS]);
        let edges = histogram.edges();
        assert_eq!((edges.len(), edges[0]), (NUM_BINS + 1, 0.0));
        assert_eq!(edges[NUM_BINS] as f32, 63.9);
        assert!((histogram.sum - values.iter().map(|&x| f64::from(x)).sum::<f64>()).abs() < 1e-9);
    }

    #[test]
    fn parts_add_up_to_the_histogram_of_the_whole() {
        let values: Vec<f32> = (0..100).map(|i| (i * i) as f32 / 8.0).collect();
        for parts in [[&values[..30], &values[30..]], [&values[..], &[]]] {
            let [mut sum, part] = parts.map(|part| Histogram::within("a", part, bounds(&values)));
            sum.add(&part);
            assert_eq!(sum, Histogram::of("a", &values));
        }
    }

    #[test]
    fn elements_that_are_not_finite_are_counted_apart() {
        let values = [f32::NAN, 1.0, f32::INFINITY, -1.0, f32::NEG_INFINITY];
        let histogram = Histogram::of("a", &values);
        assert_eq!((histogram.min, histogram.max), (-1.0, 1.0));
        assert_eq!(histogram.non_finite, 3);
        assert_eq!(histogram.counts.iter().sum::<u64>(), 2);
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
    }

    #[test]
    fn equal_extreme_or_no_elements_have_bins_that_ascend() {
        for values in [
            &[][..],
            &[f32::NAN],
            &[0.25; 3],
            &[1e30; 3],
            &[f32::MIN, f32::MAX],
            &[0.0, 1e-45],
        ] {
            let histogram = Histogram::of("a", values);
            let edges = histogram.edges();
            assert!(edges.is_sorted_by(|a, b| a < b), "{values:?}: {edges:?}");
            let finite = values.iter().filter(|x| x.is_finite()).count();
            assert_eq!(histogram.counts.iter().sum::<u64>(), finite as u64);
            assert!(histogram.sum_squares.is_finite());
        }
    }
}
