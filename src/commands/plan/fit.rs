//! Whether a run fits a given memory, and if not, which settings nearest to its own would.
//!
//! Found by estimating them. What changes no number of the run comes first (remat, smaller micro-batches), then what
//! changes rounding, then what trains something else; and as few changes as possible.

use super::estimate::Estimate;
use crate::invocation::Invocation;

/// The answer.
pub(super) struct Fit {
    pub(super) memory_bytes: u64,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Fits,
    FitsWith(Changed),
    /// Nothing that was tried does; this came nearest.
    TooLarge(Option<Changed>),
}

/// Overrides, and the peak of the run with them.
pub(super) struct Changed {
    pub(super) overrides: Vec<String>,
    pub(super) peak_bytes: u64,
}

/// Settings that save memory, the one that changes least first. An option that this program does not have, or that does
/// not go with the rest of the configuration, is passed over.
const SAVINGS: &[&[&str]] = &[
    &["model/sharding=zero1"],
    &["model/sharding=zero2"],
    &["model/sharding=zero3"],
    &["model/remat=full"],
    &["precision=bf16"],
    &["trainer.optimizer.kwargs.state_dtype=bf16"],
    &["model/adapter=lora"],
    &["model/adapter=lora", "model.adapter.base_dtype=bf16"],
];

pub(super) fn check(invocation: &Invocation, estimate: &Estimate, memory_bytes: u64) -> Fit {
    let outcome = if estimate.process_bytes() <= memory_bytes {
        Outcome::Fits
    } else {
        search(invocation, estimate, memory_bytes)
    };
    Fit {
        memory_bytes,
        outcome,
    }
}

fn search(invocation: &Invocation, estimate: &Estimate, memory_bytes: u64) -> Outcome {
    let owned = |saving: &[&str]| -> Vec<String> { saving.iter().map(|&it| it.into()).collect() };
    let saves = |saving: &Vec<String>| {
        peak_with(invocation, saving).is_some_and(|peak| peak < estimate.process_bytes())
    };
    let known: Vec<Vec<String>> = SAVINGS
        .iter()
        .map(|saving| owned(saving))
        .filter(saves)
        .collect();
    let mut nearest: Option<Changed> = None;
    // Each bit of `chosen` is a saving: counting up tries all others before the next one.
    for chosen in 0..1usize << known.len() {
        let chosen = known
            .iter()
            .enumerate()
            .filter(|(i, _)| chosen >> i & 1 == 1);
        let chosen: Vec<String> = chosen.flat_map(|(_, saving)| saving.clone()).collect();
        let ways = chosen.iter().filter(|it| it.starts_with("model/sharding="));
        if ways.count() > 1 {
            continue; // of one group
        }
        for rows in micro_batch_sizes(estimate) {
            let mut overrides = chosen.clone();
            if rows != estimate.trainer.micro_batch_size {
                overrides.push(format!("trainer.micro_batch_size={rows}"));
            }
            if overrides.is_empty() {
                continue; // the run as it is
            }
            let Some(peak_bytes) = peak_with(invocation, &overrides) else {
                continue;
            };
            let changed = Changed {
                overrides,
                peak_bytes,
            };
            if peak_bytes <= memory_bytes {
                return Outcome::FitsWith(changed);
            }
            if nearest
                .as_ref()
                .is_none_or(|best| peak_bytes < best.peak_bytes)
            {
                nearest = Some(changed);
            }
        }
    }
    Outcome::TooLarge(nearest)
}

/// The run's own, then smaller ones that divide the same global batch, each at most half of the one before.
fn micro_batch_sizes(estimate: &Estimate) -> Vec<usize> {
    let global = estimate.trainer.global_batch_size;
    let mut sizes = vec![estimate.trainer.micro_batch_size];
    while let Some(smaller) = sizes.last().and_then(|last| {
        (1..=last / 2)
            .rev()
            .find(|rows| global.is_multiple_of(*rows))
    }) {
        sizes.push(smaller);
    }
    sizes
}

/// `None` if the run cannot be made so.
fn peak_with(invocation: &Invocation, overrides: &[String]) -> Option<u64> {
    let estimate = Estimate::of(&invocation.with(overrides).ok()?).ok()?;
    Some(estimate.process_bytes())
}
