//! Lion: steps of equal size along the signs of an interpolated momentum.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::UpdateRule;

use crate::elementwise::{Elementwise, Rule};
use crate::state::StateDtype;

/// Lion: steps of equal size along the signs of an interpolated momentum.
///
/// State: `exp_avg`. Formula: [`UpdateRule::Lion`]. A rate of a third to a tenth of AdamW's, and a weight decay as many
/// times greater, are usual. Source: Chen et al. 2023, arXiv:2302.06675.
pub type Lion = Elementwise<LionConfig>;

/// `lion.Lion`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LionConfig {
    /// Peak learning rate, by which every weight moves; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Weight of the momentum in the step, and decay of the momentum.
    #[serde(default = "default_betas")]
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
    /// Share of a weight that `lr` times this removes each step; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Number format of the momentum; bf16 takes half the memory and needs a decay of at most 0.995.
    #[serde(default)]
    pub state_dtype: StateDtype,
}

fn default_betas() -> [f64; 2] {
    [0.9, 0.99]
}

impl Rule for LionConfig {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn state_dtype(&self) -> StateDtype {
        self.state_dtype
    }

    fn update(&self, lr: f64, _step: u64, decays: bool) -> UpdateRule {
        UpdateRule::Lion {
            lr,
            beta1: self.betas[0],
            beta2: self.betas[1],
            weight_decay: if decays { self.weight_decay } else { 0.0 },
        }
    }

    fn reports_sign_agreement(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        self.state_dtype.check(&self.betas[1..])
    }
}
