//! Stochastic gradient descent with momentum, in PyTorch's form: weight decay is added to the gradient.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::UpdateRule;

use crate::elementwise::{Elementwise, Rule};
use crate::state::StateDtype;

/// Stochastic gradient descent with momentum, in PyTorch's form: weight decay is added to the gradient.
///
/// State: none, or with momentum `momentum_buffer`. The buffer starts as the first gradient, without dampening.
/// Formula: [`UpdateRule::Momentum`].
pub type Sgd = Elementwise<SgdConfig>;

/// `sgd.SGD`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SgdConfig {
    /// Peak learning rate; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Share of the last step that the next one keeps; 0 for none, and no state.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub momentum: f64,
    /// Share of a gradient that is left out of the momentum.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub dampening: f64,
    /// Looks one step of momentum ahead; needs a momentum, and no dampening.
    #[serde(default)]
    pub nesterov: bool,
    /// This times the weight is added to its gradient; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Number format of the momentum; bf16 takes half the memory and needs a decay of at most 0.995.
    #[serde(default)]
    pub state_dtype: StateDtype,
}

impl Rule for SgdConfig {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state_names(&self) -> &'static [&'static str] {
        match self.momentum {
            0.0 => &[],
            _ => &["momentum_buffer"],
        }
    }

    fn state_dtype(&self) -> StateDtype {
        self.state_dtype
    }

    fn update(&self, lr: f64, step: u64, decays: bool) -> UpdateRule {
        let weight_decay = if decays { self.weight_decay } else { 0.0 };
        if self.momentum == 0.0 {
            return UpdateRule::Descend {
                keep: 1.0 - lr * weight_decay,
                rate: lr,
            };
        }
        UpdateRule::Momentum {
            lr,
            momentum: self.momentum,
            dampening: self.dampening,
            nesterov: self.nesterov,
            weight_decay,
            is_first: step == 1,
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err("`nesterov` needs a `momentum`, and a `dampening` of 0".to_owned());
        }
        self.state_dtype.check(&[self.momentum])
    }
}
