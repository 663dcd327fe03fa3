//! Adagrad, in PyTorch's form: rates fall with the sum of all squared gradients so far.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::UpdateRule;

use crate::elementwise::{Elementwise, Rule};

/// Adagrad, in PyTorch's form: rates fall with the sum of all squared gradients so far.
///
/// State: `sum`. Formula: [`UpdateRule::Adagrad`]. Source: Duchi, Hazan and Singer 2011.
pub type Adagrad = Elementwise<AdagradConfig>;

/// `adagrad.Adagrad`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdagradConfig {
    /// Peak learning rate; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// What the sums start from.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub initial_accumulator_value: f64,
    /// Added to the root of the sum.
    #[serde(default = "default_eps")]
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// This times the weight is added to its gradient; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
}

fn default_eps() -> f64 {
    1e-10
}

impl Rule for AdagradConfig {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn initial_state(&self) -> f32 {
        self.initial_accumulator_value as f32
    }

    fn update(&self, lr: f64, _step: u64, decays: bool) -> UpdateRule {
        UpdateRule::Adagrad {
            lr,
            eps: self.eps,
            weight_decay: if decays { self.weight_decay } else { 0.0 },
        }
    }
}
