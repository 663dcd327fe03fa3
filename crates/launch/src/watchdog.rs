//! Tells a device that works from one that hangs.
//!
//! The worker writes down when a wait for the device begins and ends, and which launch the device has begun with. As long
//! as one of these changes, or the worker waits for nothing, all is well. Each poll counts for at most two [`PERIOD`]s, so
//! that a suspended machine or a stopped process group is no hang.

use std::time::{Duration, Instant};

use tt_tpu::flight::Flight;

use crate::session::Files;

/// Between two polls.
const PERIOD: Duration = Duration::from_millis(250);

pub(crate) struct Watchdog {
    limit: Option<Duration>,
    polled: Option<Instant>,
    seen: Option<Progress>,
    stuck: Duration,
}

/// What changes while the device works.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    waits: u64,
    started: Option<u64>,
}

impl Watchdog {
    /// With the longest time that a wait may take, if any.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            polled: None,
            seen: None,
            stuck: Duration::ZERO,
        }
    }

    /// Reads the record, unless it is too early. `Some`: the device hangs, for so long.
    pub(crate) fn poll(&mut self, files: &Files, now: Instant) -> Option<Duration> {
        let since = self
            .polled
            .map(|polled| now.saturating_duration_since(polled));
        if self.limit.is_none() || since.is_some_and(|since| since < PERIOD) {
            return None;
        }
        self.polled = Some(now);
        // There is none before the device is opened.
        let flight = Flight::read(&files.flight()).unwrap_or_default();
        self.observe(&flight, since.unwrap_or_default())
    }

    fn observe(&mut self, flight: &Flight, since: Duration) -> Option<Duration> {
        let progress = Progress {
            waits: flight.waits,
            started: flight.started,
        };
        let is_stuck = flight.waiting_for.is_some() && self.seen.as_ref() == Some(&progress);
        self.seen = Some(progress);
        self.stuck = if is_stuck {
            self.stuck + since.min(2 * PERIOD)
        } else {
            Duration::ZERO
        };
        self.limit
            .filter(|&limit| self.stuck >= limit)
            .map(|_| self.stuck)
    }
}

#[cfg(test)]
mod tests {
    use tt_tpu::flight::Wait;

    use super::*;

    fn flight(waits: u64, started: u64) -> Flight {
        Flight {
            waits,
            started: Some(started),
            waiting_for: (waits % 2 == 1).then_some(Wait::Launches),
            ..Flight::default()
        }
    }

    fn first_hang(flights: impl IntoIterator<Item = Flight>) -> Option<usize> {
        let mut watchdog = Watchdog::new(Some(4 * PERIOD));
        let mut flights = flights.into_iter();
        flights.position(|flight| watchdog.observe(&flight, PERIOD).is_some())
    }

    #[test]
    fn a_wait_without_progress_is_a_hang_after_the_limit() {
        assert_eq!(first_hang((0..9).map(|_| flight(7, 3))), Some(4));
    }

    #[test]
    fn short_waits_and_begun_launches_are_progress() {
        assert_eq!(first_hang((0..9).map(|i| flight(2 * i + 1, 3))), None);
        assert_eq!(first_hang((0..9).map(|i| flight(7, i / 3))), None);
    }

    #[test]
    fn a_host_that_does_not_wait_is_no_hang() {
        assert_eq!(first_hang((0..9).map(|_| flight(8, 3))), None);
    }

    #[test]
    fn a_suspended_machine_is_no_hang() {
        let mut watchdog = Watchdog::new(Some(4 * PERIOD));
        watchdog.observe(&flight(7, 3), PERIOD);
        assert_eq!(
            watchdog.observe(&flight(7, 3), Duration::from_secs(3600)),
            None
        );
    }
}
