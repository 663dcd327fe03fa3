//! Learning-rate schedules: a factor of the peak rate as a pure function of the step, by the names and options of
//! transformers' `lr_scheduler_type`.
//!
//! Steps are counted from 0, as transformers does: with warmup the first step has rate 0. All rates are transformers', also
//! beyond the length of a schedule, where the cosines rise again.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_config::{Diagnostics, Section};

use crate::schedule_shapes::{self, Shape};

/// `trainer.lr_scheduler`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The schedule, by transformers' name.
    #[serde(rename = "type")]
    pub kind: String,
    /// Steps over which the rate rises to its peak; null: as `warmup_ratio` says, or none.
    #[serde(default)]
    pub num_warmup_steps: Option<u64>,
    /// The same as a share of the schedule's length, rounded up; instead of `num_warmup_steps`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: Option<f64>,
    /// The schedule's length; null: the steps of the run.
    #[serde(default)]
    pub num_training_steps: Option<u64>,
    /// Options of the schedule, by name.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// A schedule as configured, before the length of the run and the peak rate are known.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePlan {
    /// The curve after the warmup.
    pub shape: Shape,
    /// How long the rate rises before.
    pub warmup: Warmup,
    /// The steps of the run if `None`.
    pub length: Option<u64>,
}

/// How long the rate rises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// That many steps.
    Steps(u64),
    /// Of the length.
    Ratio(f64),
}

/// What of a schedule does not fit the run: a key below `trainer.lr_scheduler`, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct ScheduleError {
    /// Which key of the schedule is wrong.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: String,
}

fn fail<T>(key: &'static str, why: impl Into<String>) -> Result<T, ScheduleError> {
    let why = why.into();
    Err(ScheduleError { key, why })
}

impl SchedulePlan {
    /// A shape after this many steps of warmup, as long as the run.
    pub fn new(shape: Shape, num_warmup_steps: u64) -> Self {
        Self {
            shape,
            warmup: Warmup::Steps(num_warmup_steps),
            length: None,
        }
    }

    /// Reads `trainer.lr_scheduler`, or another section of that form.
    pub fn read(section: &Section<'_>) -> Result<Self, Diagnostics> {
        let config: ScheduleConfig = section.extract()?;
        let table = schedule_shapes::SCHEDULES;
        let entry = table.choose(section)?;
        let kwargs = section.section("kwargs").describe(table.subject(entry));
        let shape = (entry.build)(&kwargs)?;
        let warmup = match (config.num_warmup_steps, config.warmup_ratio) {
            (Some(_), Some(_)) => {
                let key = section.section("warmup_ratio");
                let why =
                    "`warmup_ratio` and `num_warmup_steps` are both given: set one of them to null";
                return Err(key.error(why).into());
            }
            (None, Some(ratio)) => Warmup::Ratio(ratio),
            (steps, None) => Warmup::Steps(steps.unwrap_or(0)),
        };
        if shape == Shape::Constant && warmup != Warmup::Steps(0) {
            let why = "`constant` has no warmup: take `constant_with_warmup`";
            return Err(section.section("type").error(why).into());
        }
        Ok(Self {
            shape,
            warmup,
            length: config.num_training_steps,
        })
    }

    /// Whether it depends on the number of steps of the run.
    pub fn needs_run_length(&self) -> bool {
        self.length.is_none()
            && (matches!(self.warmup, Warmup::Ratio(_)) || self.shape.needs_length())
    }

    /// The schedule of a run of `run_length` steps, if that is known, whose peak rate is `peak_lr`.
    pub fn build(&self, run_length: Option<u64>, peak_lr: f64) -> Result<Schedule, ScheduleError> {
        let length = self.length.or(run_length);
        if length.is_none() && self.needs_run_length() {
            return fail(
                "num_training_steps",
                "a schedule of this kind needs a length",
            );
        }
        let length = length.unwrap_or(u64::MAX);
        let warmup = match self.warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) => (length as f64 * ratio).ceil() as u64,
        };
        let mut shape = self.shape.clone();
        match &mut shape {
            Shape::Polynomial { lr_end, .. } if *lr_end >= peak_lr => {
                return fail(
                    "kwargs.lr_end",
                    format!("{lr_end} is not less than the peak rate {peak_lr}"),
                );
            }
            Shape::CosineWithMinLr(options) | Shape::CosineWarmupWithMinLr { options, .. } => {
                // From here on a share of the peak.
                if let Some(min_lr) = options.min_lr.take() {
                    if min_lr > peak_lr {
                        let why = format!("{min_lr} is more than the peak rate {peak_lr}");
                        return fail("kwargs.min_lr", why);
                    }
                    // A peak of 0 has no share; no rate is above it anyway.
                    options.min_lr_rate = Some(if peak_lr > 0.0 { min_lr / peak_lr } else { 0.0 });
                }
            }
            Shape::WarmupStableDecay(wsd) if wsd.num_stable_steps.is_none() => {
                let rest = length.checked_sub(warmup.saturating_add(wsd.num_decay_steps));
                if rest.is_none() {
                    let why = format!(
                        "{} steps of decay after {warmup} of warmup are more than the {length} there are",
                        wsd.num_decay_steps
                    );
                    return fail("kwargs.num_decay_steps", why);
                }
                wsd.num_stable_steps = rest;
            }
            _ => {}
        }
        Ok(Schedule {
            shape,
            warmup,
            length,
            peak_lr,
        })
    }
}

/// A schedule ready for use.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    shape: Shape,
    warmup: u64,
    length: u64,
    peak_lr: f64,
}

impl Schedule {
    /// The peak rate throughout.
    pub fn constant() -> Self {
        Self {
            shape: Shape::Constant,
            warmup: 0,
            length: u64::MAX,
            peak_lr: 1.0,
        }
    }

    /// The factor of the peak rate for step `step`, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        let warmup = self.warmup as f64;
        let rising = step < self.warmup;
        let risen = step as f64 / warmup.max(1.0);
        // Of what follows the warmup.
        let decay = self.length.saturating_sub(self.warmup).max(1) as f64;
        let progress = (step as f64 - warmup) / decay;
        match &self.shape {
            Shape::Constant => 1.0,
            Shape::WarmupStableDecay(wsd) => wsd.factor(step, self.warmup),
            Shape::CosineWarmupWithMinLr {
                options,
                warmup_lr_rate,
            } => {
                if rising {
                    return match warmup_lr_rate {
                        None => (step as f64 + 1.0) / warmup.max(1.0),
                        Some(rate) => rate + (1.0 - rate) * step as f64 / (warmup - 1.0).max(1.0),
                    };
                }
                let progress = progress + 1.0 / decay;
                let floor = options.min_lr_rate.unwrap_or(0.0);
                above(floor, cosine(options.num_cycles, progress)).max(0.0)
            }
            _ if rising => risen,
            Shape::ConstantWithWarmup => 1.0,
            Shape::Linear => (1.0 - progress).max(0.0),
            Shape::Cosine(options) => {
                above(options.min_lr_ratio, cosine(options.num_cycles, progress)).max(0.0)
            }
            Shape::CosineWithMinLr(options) => {
                let floor = options.min_lr_rate.unwrap_or(0.0);
                above(floor, cosine(options.num_cycles, progress)).max(0.0)
            }
            Shape::CosineWithRestarts { .. } if progress >= 1.0 => 0.0,
            Shape::CosineWithRestarts { num_cycles } => {
                let of_cycle = (*num_cycles as f64 * progress) % 1.0;
                0.5 * (1.0 + (PI * of_cycle).cos())
            }
            Shape::Polynomial { lr_end, power } => {
                let end = lr_end / self.peak_lr;
                if step > self.length {
                    return end;
                }
                (1.0 - end) * (1.0 - progress).max(0.0).powf(*power) + end
            }
            Shape::InverseSqrt { timescale } => {
                let default = if self.warmup == 0 {
                    10_000
                } else {
                    self.warmup
                };
                let timescale = timescale.unwrap_or(default) as f64;
                ((step as f64 + timescale - warmup) / timescale)
                    .sqrt()
                    .recip()
            }
        }
    }
}

/// From 1 at the start, through `num_cycles` waves.
pub(crate) fn cosine(num_cycles: f64, progress: f64) -> f64 {
    0.5 * (1.0 + (PI * num_cycles * 2.0 * progress).cos())
}

/// Lifts `factor` from 0..1 to `floor`..1.
pub(crate) fn above(floor: f64, factor: f64) -> f64 {
    factor * (1.0 - floor) + floor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule_shapes::CosineOptions;

    fn cosine_with(warmup: Warmup, min_lr_ratio: f64) -> SchedulePlan {
        let options = CosineOptions {
            min_lr_ratio,
            ..CosineOptions::default()
        };
        SchedulePlan {
            warmup,
            ..SchedulePlan::new(Shape::Cosine(options), 0)
        }
    }

    #[test]
    fn warmup_starts_at_zero_and_reaches_the_peak() {
        for warmup in [Warmup::Steps(4), Warmup::Ratio(0.2), Warmup::Ratio(0.17)] {
            let schedule = cosine_with(warmup, 0.0).build(Some(20), 1.0).unwrap();
            let factors: Vec<f64> = (0..5).map(|step| schedule.factor(step)).collect();
            assert_eq!(factors, [0.0, 0.25, 0.5, 0.75, 1.0]);
        }
    }

    #[test]
    fn a_cosine_is_half_way_down_in_the_middle_and_ends_at_the_ratio() {
        let schedule = cosine_with(Warmup::Steps(0), 0.1).build(Some(100), 1.0);
        let schedule = schedule.unwrap();
        assert!((schedule.factor(50) - 0.55).abs() < 1e-12);
        assert!((schedule.factor(100) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn a_schedule_that_needs_a_length_is_refused_without_one() {
        let plan = cosine_with(Warmup::Steps(0), 0.0);
        assert!(plan.needs_run_length());
        assert_eq!(plan.build(None, 1.0).unwrap_err().key, "num_training_steps");
        let constant = SchedulePlan::new(Shape::ConstantWithWarmup, 3);
        assert!(!constant.needs_run_length());
        assert_eq!(constant.build(None, 1.0).unwrap().factor(1_000_000), 1.0);
        let ratio = SchedulePlan {
            warmup: Warmup::Ratio(0.1),
            ..constant
        };
        assert!(ratio.needs_run_length());
    }

    #[test]
    fn a_schedule_ends_at_a_rate_under_its_peak() {
        let polynomial = |lr_end| {
            let shape = Shape::Polynomial { lr_end, power: 0.0 };
            SchedulePlan::new(shape, 0).build(Some(10), 0.1)
        };
        assert_eq!(polynomial(0.1).unwrap_err().key, "kwargs.lr_end");
        assert_eq!(polynomial(0.2).unwrap_err().key, "kwargs.lr_end");
        // A power of 0 falls after the last step only, and then at once.
        let schedule = polynomial(0.05).unwrap();
        assert_eq!(
            [9, 10, 11].map(|step| schedule.factor(step)),
            [1.0, 1.0, 0.5]
        );

        let cosine = |min_lr, peak_lr| {
            let options = crate::schedule_shapes::MinLrOptions {
                num_cycles: 0.5,
                min_lr: Some(min_lr),
                min_lr_rate: None,
            };
            SchedulePlan::new(Shape::CosineWithMinLr(options), 0).build(Some(10), peak_lr)
        };
        assert_eq!(cosine(0.2, 0.1).unwrap_err().key, "kwargs.min_lr");
        assert_eq!(cosine(0.1, 0.1).unwrap().factor(10), 1.0);
        assert_eq!(cosine(0.05, 0.1).unwrap().factor(10), 0.5);
        // A peak of 0 has no share, and yet a factor.
        assert_eq!(cosine(0.0, 0.0).unwrap().factor(0), 1.0);
    }

    #[test]
    fn a_stable_rate_rises_stays_and_falls_also_where_a_part_has_no_steps() {
        let factors = |warmup, num_stable_steps, num_decay_steps| {
            let wsd = crate::schedule_shapes::StableOptions {
                num_stable_steps: Some(num_stable_steps),
                num_decay_steps,
                warmup_type: crate::schedule_shapes::Curve::OneMinusSqrt,
                decay_type: crate::schedule_shapes::Curve::Linear,
                min_lr_ratio: 0.0,
                num_cycles: 0.5,
            };
            let schedule = SchedulePlan::new(Shape::WarmupStableDecay(wsd), warmup);
            let schedule = schedule.build(None, 1.0).unwrap();
            [0, 1, 2, 3].map(|step| schedule.factor(step))
        };
        assert_eq!(factors(4, 0, 1)[3], 0.5, "1 - sqrt(1 - 3/4)");
        assert_eq!(factors(0, 1, 2), [1.0, 1.0, 0.5, 0.0]);
        assert_eq!(factors(0, 2, 0), [1.0, 1.0, 0.0, 0.0]);
    }

    // Values of transformers 5.24's `get_scheduler`: 20 steps, 4 of warmup.
    #[test]
    fn cosine_warmup_with_min_lr_is_that_of_transformers() {
        for (warmup_lr_rate, expected) in [
            (None, [0.25, 1.0, 0.991_353_376_181_453_7, 0.1]),
            (Some(0.4), [0.4, 1.0, 0.991_353_376_181_453_7, 0.1]),
        ] {
            let options = crate::schedule_shapes::MinLrOptions {
                num_cycles: 0.5,
                min_lr: None,
                min_lr_rate: Some(0.1),
            };
            let shape = Shape::CosineWarmupWithMinLr {
                options,
                warmup_lr_rate,
            };
            let schedule = SchedulePlan::new(shape, 4).build(Some(20), 1e-3).unwrap();
            for (step, expected) in [0, 3, 4, 19].into_iter().zip(expected) {
                let factor = schedule.factor(step);
                assert!((factor - expected).abs() < 1e-12, "{step}: {factor}");
            }
        }
    }
}
