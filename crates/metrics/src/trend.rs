//! Where a noisy number is going.

/// Averages of the last few values and of many.
#[derive(Debug, Default)]
pub(crate) struct Trend {
    short: Average<8>,
    long: Average<64>,
}

/// Over about the last `N` values, each weighing less than the one after it.
#[derive(Debug, Default)]
struct Average<const N: u32> {
    sum: f64,
    /// Of the weights so far.
    share: f64,
}

impl<const N: u32> Average<N> {
    fn add(&mut self, value: f64) {
        let keep = 1.0 - 1.0 / f64::from(N);
        self.sum = keep * self.sum + (1.0 - keep) * value;
        self.share = keep * self.share + (1.0 - keep);
    }

    fn value(&self) -> f64 {
        self.sum / self.share
    }
}

/// Less than this part of the value is no change.
const LEAST_CHANGE: f64 = 0.002;

impl Trend {
    /// One more value. Those that are not finite do not count.
    pub(crate) fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.short.add(value);
            self.long.add(value);
        }
    }

    /// Down, level or up; empty while nothing can be said.
    pub(crate) fn arrow(&self) -> &'static str {
        let (short, long) = (self.short.value(), self.long.value());
        if !short.is_finite() || self.short.share < 0.5 {
            return "";
        }
        match (short - long) / long.abs().max(f64::MIN_POSITIVE) {
            change if change < -LEAST_CHANGE => "\u{2193}",
            change if change > LEAST_CHANGE => "\u{2191}",
            _ => "\u{2192}",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arrow_follows_the_last_values_and_says_nothing_of_the_first() {
        let arrow = |values: &mut dyn Iterator<Item = f64>| {
            let mut trend = Trend::default();
            values.for_each(|value| trend.add(value));
            trend.arrow()
        };
        let steps = || (0..100).map(f64::from);
        assert_eq!(arrow(&mut steps().take(2)), "");
        assert_eq!(arrow(&mut steps().map(|x| 200.0 - x)), "\u{2193}");
        assert_eq!(arrow(&mut steps().map(|x| 200.0 + x)), "\u{2191}");
        assert_eq!(arrow(&mut steps().map(|_| 3.0)), "\u{2192}");
        let holes = [f64::NAN, f64::INFINITY].into_iter().cycle().take(9);
        assert_eq!(arrow(&mut holes.clone()), "");
        assert_eq!(
            arrow(&mut steps().map(|x| 200.0 - x).chain(holes)),
            "\u{2193}"
        );
    }
}
