//! Dynamic loss scaling, which keeps the gradients of f16 activations from vanishing.
//!
//! The loss is multiplied by the scale before the backward pass, and the optimizer sees gradients divided by it.
//! A gradient that is not finite came of a scale too large: the step is skipped and the scale backs off; after
//! `growth_interval` good steps in a row it grows. It is an f32, and goes through the values that it would have in
//! `torch.amp.GradScaler`. Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `trainer.loss_scale`: how the loss is scaled with `precision: fp16`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleConfig {
    /// The scale of the first step.
    #[schemars(range(min = 1e-6))]
    pub init_scale: f32,
    /// Multiplies the scale after `growth_interval` steps without an overflow.
    #[schemars(range(min = 1.0))]
    pub growth_factor: f64,
    /// Multiplies the scale after an overflow.
    #[schemars(range(min = 1e-6, max = 0.999_999))]
    pub backoff_factor: f64,
    /// Steps in a row without an overflow after which the scale grows.
    #[schemars(range(min = 1))]
    pub growth_interval: u64,
    /// An overflow at this scale or below is no matter of scaling: the step is a bad one, as `trainer.bad_steps` says.
    #[schemars(range(min = 0.0))]
    pub min_scale: f32,
}

impl Default for LossScaleConfig {
    fn default() -> Self {
        Self {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: 1.0,
        }
    }
}

/// The changing part of a [`LossScaler`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    scale: f32,
    /// Steps without an overflow since the scale last changed.
    good_steps: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct LossScaler {
    config: LossScaleConfig,
    now: LossScale,
}

impl LossScaler {
    pub fn new(config: &LossScaleConfig) -> Self {
        Self {
            config: config.clone(),
            now: LossScale {
                scale: config.init_scale,
                good_steps: 0,
            },
        }
    }

    pub fn scale(&self) -> f32 {
        self.now.scale
    }

    /// What the summed loss of each micro-batch of a step is multiplied by.
    ///
    /// Gradients of a sum are larger than those of the mean, of which one expects an f16 to hold them, by the number
    /// of targets. Divided by the next power of two, as divisions by powers of two are exact.
    pub fn seed(&self, num_targets: usize) -> f32 {
        self.now.scale / num_targets.max(1).next_power_of_two() as f32
    }

    /// Whether the scale may be what made a gradient overflow.
    pub fn can_back_off(&self) -> bool {
        self.now.scale > self.config.min_scale
    }

    /// To be called after each step.
    pub fn update(&mut self, overflow: bool) {
        let LossScale { scale, good_steps } = &mut self.now;
        let times = |factor: f64| (f64::from(*scale) * factor) as f32;
        if overflow {
            *scale = times(self.config.backoff_factor);
            *good_steps = 0;
            return;
        }
        *good_steps += 1;
        if *good_steps >= self.config.growth_interval {
            let grown = times(self.config.growth_factor);
            if grown.is_finite() {
                *scale = grown;
            }
            *good_steps = 0;
        }
    }

    pub fn state(&self) -> LossScale {
        self.now
    }

    pub fn restore(&mut self, state: LossScale) {
        self.now = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales(config: LossScaleConfig, steps: &str) -> Vec<f32> {
        let mut scaler = LossScaler::new(&config);
        let step = |step: char| {
            scaler.update(step == 'x');
            scaler.scale()
        };
        steps.chars().map(step).collect()
    }

    // Figures of `torch.amp.GradScaler` of PyTorch 2.9.1; an `x` is a step with a gradient that is not finite.

    #[test]
    fn scales_are_those_of_pytorch() {
        let config = LossScaleConfig {
            growth_interval: 4,
            ..LossScaleConfig::default()
        };
        let steps = "..x.....xx...x........x.........x";
        let expected = [
            65536., 65536., 32768., 32768., 32768., 32768., 65536., 65536., 32768., 16384., 16384.,
            16384., 16384., 8192., 8192., 8192., 8192., 16384., 16384., 16384., 16384., 32768.,
            16384., 16384., 16384., 16384., 32768., 32768., 32768., 32768., 65536., 65536., 32768.,
        ];
        assert_eq!(scales(config, steps), expected);
    }

    #[test]
    fn factors_that_are_no_powers_of_two_round_as_in_pytorch() {
        let config = LossScaleConfig {
            init_scale: 3.0,
            growth_factor: 1.7,
            backoff_factor: 0.3,
            growth_interval: 2,
            min_scale: 0.0,
        };
        let expected: [f64; 18] = [
            3.0,
            5.099999904632568,
            1.5299999713897705,
            1.5299999713897705,
            2.6009998321533203,
            0.780299961566925,
            0.780299961566925,
            1.326509952545166,
            1.326509952545166,
            0.39795297384262085,
            0.11938589066267014,
            0.0358157679438591,
            0.0358157679438591,
            0.06088680401444435,
            0.06088680401444435,
            0.10350756347179413,
            0.10350756347179413,
            0.17596286535263062,
        ];
        let scales = scales(config, "..x..x...xxx......");
        let scales: Vec<f64> = scales.into_iter().map(f64::from).collect();
        assert_eq!(scales, expected);
    }

    #[test]
    fn a_scale_never_grows_to_infinity() {
        let config = LossScaleConfig {
            init_scale: 2f32.powi(126),
            growth_interval: 1,
            ..LossScaleConfig::default()
        };
        assert_eq!(scales(config, "...."), [2f32.powi(127); 4]);
    }

    #[test]
    fn the_seed_divides_by_a_power_of_two_of_at_least_the_targets() {
        let scaler = LossScaler::new(&LossScaleConfig::default());
        assert_eq!(scaler.seed(128), 65536.0 / 128.0);
        assert_eq!(scaler.seed(129), 65536.0 / 256.0);
        assert_eq!(scaler.seed(0), 65536.0);
    }
}
