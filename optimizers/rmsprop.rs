//! RMSprop, in PyTorch's form, neither centred nor with momentum.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::UpdateRule;

use crate::elementwise::{Elementwise, Rule};

/// RMSprop, in PyTorch's form, neither centred nor with momentum.
///
/// State: `square_avg`. Formula: [`UpdateRule::RmsProp`]. Source: Tieleman and Hinton 2012, lecture 6.5.
pub type RmsProp = Elementwise<RmsPropConfig>;

/// `rmsprop.RMSprop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RmsPropConfig {
    /// Peak learning rate; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Decay of the running mean of the gradient's square.
    #[serde(default = "default_alpha")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub alpha: f64,
    /// Added to the root of the mean.
    #[serde(default = "crate::adamw::default_eps")]
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// This times the weight is added to its gradient; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
}

fn default_alpha() -> f64 {
    0.99
}

impl Rule for RmsPropConfig {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["square_avg"]
    }

    fn update(&self, lr: f64, _step: u64, decays: bool) -> UpdateRule {
        UpdateRule::RmsProp {
            lr,
            alpha: self.alpha,
            eps: self.eps,
            weight_decay: if decays { self.weight_decay } else { 0.0 },
        }
    }
}
