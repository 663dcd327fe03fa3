//! How often something is measured, and what of it is told.

use std::time::{Duration, Instant};

use super::config::BenchConfig;
use crate::failure::Failure;

/// Few enough for the slowest, and enough for a median.
const FEWEST: u64 = 3;

/// What `once` gives, as often as `config` says, after as many that are left out. `None` counts towards nothing but the time.
pub(super) fn samples<T>(
    config: &BenchConfig,
    mut once: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<Vec<T>, Failure> {
    for _ in 0..config.warmup {
        once()?;
    }
    let begun = Instant::now();
    let (fewest, most) = match config.steps {
        Some(steps) => (1, steps),
        None => (FEWEST, u64::MAX),
    };
    let mut found = Vec::new();
    loop {
        let count = found.len() as u64;
        let is_late = begun.elapsed().as_secs_f64() >= config.seconds;
        if count >= most || (is_late && count >= fewest) {
            return Ok(found);
        }
        found.extend(once()?);
    }
}

/// The one in the middle by `key`, the lesser of two. `None` of none.
pub(super) fn median<T>(mut samples: Vec<T>, key: impl Fn(&T) -> Duration) -> Option<T> {
    samples.sort_by_key(key);
    let middle = samples.len().checked_sub(1)? / 2;
    samples.into_iter().nth(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(config: BenchConfig) -> (u64, usize) {
        let mut calls = 0;
        let found = samples(&config, || {
            calls += 1;
            Ok(Some(calls))
        });
        (calls, found.unwrap().len())
    }

    #[test]
    fn steps_are_made_until_there_are_enough_or_the_time_is_over() {
        let config = BenchConfig {
            seconds: 0.0,
            ..BenchConfig::default()
        };
        assert_eq!(made(config.clone()), (5, 3));
        let steps = Some(4);
        assert_eq!(
            made(BenchConfig {
                steps,
                ..config.clone()
            }),
            (3, 1)
        );
        let seconds = 1e6;
        assert_eq!(
            made(BenchConfig {
                steps,
                seconds,
                ..config
            }),
            (6, 4)
        );
    }

    #[test]
    fn the_median_is_one_of_them() {
        let median = |values: &[u64]| median(values.to_vec(), |&it| Duration::from_secs(it));
        assert_eq!(median(&[9, 1, 5]), Some(5));
        assert_eq!(median(&[9, 1, 5, 4]), Some(4));
        assert_eq!(median(&[]), None);
    }
}
