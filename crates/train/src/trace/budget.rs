//! What the operations of a step take: how often each is made, forward, backward and by the optimizers, for how long and
//! for how many floating-point operations.
//!
//! Times are from spans as a trace has them. Operations are counted by the same steps on a device without memory, whose
//! spans say how many: see [`Budget::with_flops_of`].

use std::collections::BTreeMap;
use std::iter::Sum;
use std::time::Duration;

use tt_collators::Batch;
use tt_tensor::profile::{self, Event};

use super::place::places;
use crate::Trainer;
use crate::bench::timed_step;
use crate::error::Result;
use crate::training::Training;

/// Of `steps` steps together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// How many there were.
    pub steps: u64,
    /// What they took.
    pub time: Duration,
    /// By part of the step and operation.
    pub operations: BTreeMap<(String, String), OperationCost>,
}

/// Of an operation in a part of the step; what it holds of others is theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCost {
    /// How often it was made.
    pub calls: u64,
    /// How long it took.
    pub time: Duration,
    /// Matrix products and attention, those that are made a second time included.
    pub flops: u64,
}

/// Makes a step of `batches`, its micro-batches. `None` of one that was skipped, as it has taken less. Error: as of
/// [`timed_step`].
pub fn budget(
    training: &mut Training,
    trainer: &mut dyn Trainer,
    batches: &[Batch],
) -> Result<Option<Budget>> {
    profile::begin(training.device)?;
    let span = profile::span("step", || "step");
    let made = timed_step(training, trainer, batches);
    drop(span);
    // Also after an error: nothing more is to be recorded.
    let events = profile::end();
    Ok(made?.is_applied.then(|| Budget::of(&events)))
}

impl Budget {
    fn of(events: &[Event]) -> Self {
        let places = places(events);
        let (mut times, mut flops): (Vec<_>, Vec<_>) = events
            .iter()
            .map(|event| (event.length, event.flops))
            .unzip();
        for (event, place) in events.iter().zip(&places) {
            if let ("kernel", Some(outer)) = (event.kind, place.kernel) {
                times[outer] = times[outer].saturating_sub(event.length);
                flops[outer] = flops[outer].saturating_sub(event.flops);
            }
        }
        let mut budget = Self::default();
        for (index, (event, place)) in events.iter().zip(&places).enumerate() {
            match event.kind {
                "step" => {
                    budget.steps += 1;
                    budget.time += event.length;
                }
                "kernel" if place.is_in_step => {
                    let part = place.part.unwrap_or("step").to_owned();
                    let key = (part, event.name.to_string());
                    let cost = budget.operations.entry(key).or_default();
                    cost.calls += 1;
                    cost.time += times[index];
                    cost.flops += flops[index];
                }
                _ => {}
            }
        }
        budget
    }

    /// The same with the floating-point operations of `counted`, which the same step has come to on a device that counts.
    #[must_use]
    pub fn with_flops_of(mut self, counted: &Self) -> Self {
        for (key, cost) in &mut self.operations {
            let of_a_step = |it: &OperationCost| it.flops / counted.steps.max(1);
            cost.flops = counted.operations.get(key).map_or(0, of_a_step) * self.steps;
        }
        self
    }

    /// What is in no operation: the tape, the host's part of the step.
    pub fn elsewhere(&self) -> Duration {
        let known = self.operations.values().map(|cost| cost.time).sum();
        self.time.saturating_sub(known)
    }
}

/// Of all their steps.
impl Sum for Budget {
    fn sum<I: Iterator<Item = Self>>(budgets: I) -> Self {
        budgets.fold(Self::default(), |mut all, one| {
            all.steps += one.steps;
            all.time += one.time;
            for (key, cost) in one.operations {
                let sum = all.operations.entry(key).or_default();
                sum.calls += cost.calls;
                sum.time += cost.time;
                sum.flops += cost.flops;
            }
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(kind, name, first millisecond, last, flops)`.
    fn events(spans: &[(&'static str, &'static str, u64, u64, u64)]) -> Vec<Event> {
        let event = |&(kind, name, first, last, flops): &(_, &'static str, u64, u64, u64)| Event {
            name: name.into(),
            kind,
            start: Duration::from_millis(first),
            length: Duration::from_millis(last - first),
            thread: std::thread::current().id(),
            flops,
            work: None,
        };
        spans.iter().map(event).collect()
    }

    #[test]
    fn an_operation_has_what_no_other_within_it_has() {
        let budget = Budget::of(&events(&[
            ("kernel", "before", 0, 9, 5),
            ("kernel", "fused::linear", 12, 15, 20),
            ("kernel", "fused::cross_entropy", 11, 18, 50),
            ("part", "forward", 10, 20, 50),
            ("kernel", "fused::linear", 21, 25, 40),
            ("kernel", "fused::linear", 25, 26, 1),
            ("part", "backward", 20, 28, 41),
            ("step", "step", 10, 30, 91),
        ]));
        let cost = |calls, milliseconds, flops| OperationCost {
            calls,
            time: Duration::from_millis(milliseconds),
            flops,
        };
        let key = |part: &str, operation: &str| (part.to_owned(), operation.to_owned());
        let expected = [
            (key("backward", "fused::linear"), cost(2, 5, 41)),
            (key("forward", "fused::cross_entropy"), cost(1, 4, 30)),
            (key("forward", "fused::linear"), cost(1, 3, 20)),
        ];
        assert_eq!(budget.operations, BTreeMap::from(expected));
        assert_eq!((budget.steps, budget.time), (1, Duration::from_millis(20)));
        assert_eq!(budget.elsewhere(), Duration::from_millis(8));
    }

    #[test]
    fn operations_are_counted_by_the_step_of_another_device() {
        let one = ("kernel", "fused::linear", 1, 2, 7);
        let step = ("step", "step", 0, 10, 7);
        let timed = [
            ("kernel", "fused::linear", 1, 2, 0),
            ("step", "step", 0, 10, 0),
        ];
        let later = [
            ("kernel", "fused::linear", 11, 12, 0),
            ("step", "step", 10, 20, 0),
        ];
        let timed = Budget::of(&events(&[timed, later].concat()));
        let of_both = timed.with_flops_of(&Budget::of(&events(&[one, step])));
        let cost = of_both.operations.values().next().unwrap();
        assert_eq!((cost.calls, cost.flops), (2, 14));
        let again = [of_both.clone(), of_both.clone()]
            .into_iter()
            .sum::<Budget>();
        let cost = again.operations.values().next().unwrap();
        assert_eq!((again.steps, cost.calls, cost.flops), (4, 4, 28));
    }
}
