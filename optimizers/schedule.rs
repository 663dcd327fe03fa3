//! Learning-rate schedules: a factor of the peak rate as a pure function of the step.
//!
//! Steps are counted from 0, as transformers does: with warmup the first step has rate 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `trainer.lr_scheduler`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Shape of the schedule after the warmup.
    #[serde(rename = "type")]
    pub kind: ScheduleKind,
    /// Steps over which the rate rises linearly from 0.
    #[serde(default)]
    pub num_warmup_steps: u64,
    /// Steps until the schedule has run its course; null: the trainer's `max_steps`.
    #[serde(default)]
    pub num_training_steps: Option<u64>,
    /// Options of the shape.
    #[serde(default)]
    pub kwargs: ScheduleOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    Cosine,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleOptions {
    /// Share of the peak rate that the cosine ends at.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_lr_ratio: f64,
}

/// A schedule ready for use.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    warmup: u64,
    total: u64,
    min_ratio: f64,
}

impl Schedule {
    pub fn new(config: &ScheduleConfig, max_steps: u64) -> Self {
        Self {
            kind: config.kind,
            warmup: config.num_warmup_steps,
            total: config.num_training_steps.unwrap_or(max_steps),
            min_ratio: config.kwargs.min_lr_ratio,
        }
    }

    /// The factor of the peak rate for step `step`, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup {
            return step as f64 / self.warmup as f64;
        }
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Cosine => {
                let length = self.total.saturating_sub(self.warmup).max(1);
                let progress = ((step - self.warmup) as f64 / length as f64).min(1.0);
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
                self.min_ratio + (1.0 - self.min_ratio) * cosine
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(warmup: u64, total: u64, min_lr_ratio: f64) -> Schedule {
        let config = ScheduleConfig {
            kind: ScheduleKind::Cosine,
            num_warmup_steps: warmup,
            num_training_steps: Some(total),
            kwargs: ScheduleOptions { min_lr_ratio },
        };
        Schedule::new(&config, 0)
    }

    #[test]
    fn warmup_starts_at_zero_and_reaches_the_peak() {
        let schedule = schedule(4, 20, 0.0);
        let factors: Vec<f64> = (0..5).map(|step| schedule.factor(step)).collect();
        assert_eq!(factors, [0.0, 0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn cosine_is_half_way_down_in_the_middle_and_ends_at_the_ratio() {
        let schedule = schedule(0, 100, 0.1);
        assert!((schedule.factor(50) - 0.55).abs() < 1e-12);
        assert!((schedule.factor(100) - 0.1).abs() < 1e-12);
        assert!((schedule.factor(1000) - 0.1).abs() < 1e-12);
    }
}
