//! The spike guard: steps whose loss or gradient norm is far above that of the steps before.
//!
//! A step is a spike if either is more than `sigma` standard deviations above its mean over the last `window` steps
//! that reached the weights. It is asked only once half a window is known.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `trainer.spike_guard`: what is done about a step with an unusually high loss or gradient norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpikeGuardConfig {
    /// `warn` says so, `skip` leaves the weights alone and goes on with the next batch, `stop` ends the run; null: off.
    pub action: Option<SpikeAction>,
    /// Steps that a step is compared with.
    #[schemars(range(min = 2))]
    pub window: usize,
    /// Standard deviations above the mean from where a step is a spike.
    #[schemars(range(min = 0.0))]
    pub sigma: f64,
}

impl Default for SpikeGuardConfig {
    fn default() -> Self {
        Self {
            action: None,
            window: 128,
            sigma: 6.0,
        }
    }
}

#[expect(
    missing_docs,
    reason = "named as in the configuration, whose reference says it"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpikeAction {
    Warn,
    Skip,
    Stop,
}

/// What was far above the usual.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spike {
    /// `loss` or `grad_norm`.
    pub name: &'static str,
    /// The loss, or the norm.
    pub value: f32,
    /// Over the steps before.
    pub mean: f64,
    /// Standard deviation of the steps before.
    pub std: f64,
}

impl std::fmt::Display for Spike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            value,
            mean,
            std,
        } = self;
        let sigmas = (f64::from(*value) - mean) / std;
        write!(
            f,
            "{name} {value:.4} is {sigmas:.1} standard deviations above its mean {mean:.4} over the steps before"
        )
    }
}

/// The steps that a step is compared with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recent {
    loss: VecDeque<f32>,
    grad_norm: VecDeque<f32>,
}

impl Recent {
    /// What of a step is a spike.
    pub fn spike(&self, config: &SpikeGuardConfig, loss: f32, grad_norm: f32) -> Option<Spike> {
        let looked_at = [
            ("loss", loss, &self.loss),
            ("grad_norm", grad_norm, &self.grad_norm),
        ];
        looked_at.into_iter().find_map(|(name, value, before)| {
            if 2 * before.len() < config.window {
                return None;
            }
            let (mean, std) = mean_and_std(before);
            // Steps that hardly differ would make a spike of rounding.
            let std = std.max(1e-6 * mean.abs()).max(f64::MIN_POSITIVE);
            let is_spike = f64::from(value) > mean + config.sigma * std;
            is_spike.then_some(Spike {
                name,
                value,
                mean,
                std,
            })
        })
    }

    /// Takes a step that reached the weights.
    pub fn push(&mut self, window: usize, loss: f32, grad_norm: f32) {
        for (value, values) in [(loss, &mut self.loss), (grad_norm, &mut self.grad_norm)] {
            values.push_back(value);
            // More than one after a resume with a smaller window.
            while values.len() > window {
                values.pop_front();
            }
        }
    }
}

fn mean_and_std(values: &VecDeque<f32>) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2));
    (mean, (squares.sum::<f64>() / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SpikeGuardConfig {
        SpikeGuardConfig {
            action: Some(SpikeAction::Skip),
            window: 8,
            sigma: 3.0,
        }
    }

    /// Losses of 1 and 3: mean 2, standard deviation 1; gradient norms ten times as much.
    fn recent(steps: usize) -> Recent {
        let mut recent = Recent::default();
        for step in 0..steps {
            let loss = if step % 2 == 0 { 1.0 } else { 3.0 };
            recent.push(8, loss, 10.0 * loss);
        }
        recent
    }

    #[test]
    fn more_than_sigma_deviations_above_the_mean_is_a_spike() {
        let spike = |loss, grad_norm| recent(8).spike(&config(), loss, grad_norm);
        assert_eq!(spike(5.0, 50.0), None);
        assert_eq!(spike(-100.0, 0.0), None, "low is no spike");
        let found = spike(5.01, 0.0).unwrap();
        assert_eq!(
            (found.name, found.mean, found.std),
            ("loss", 2.0, 1.0),
            "{found}"
        );
        assert_eq!(spike(0.0, 50.1).unwrap().name, "grad_norm");
    }

    #[test]
    fn nothing_is_a_spike_before_half_a_window_is_known() {
        assert_eq!(recent(3).spike(&config(), 1e9, 1e9), None);
        assert!(recent(4).spike(&config(), 1e9, 1e9).is_some());
    }

    #[test]
    fn the_window_forgets() {
        let mut recent = recent(8);
        for _ in 0..8 {
            recent.push(8, 5.0, 5.0);
        }
        assert_eq!(recent.spike(&config(), 5.0, 5.0), None);
        assert!(recent.spike(&config(), 5.5, 5.0).is_some());
    }
}
