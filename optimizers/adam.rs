//! Adam with L2 regularisation, in PyTorch's form: weight decay is added to the gradient, and so goes through the moments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::{AdamParams, UpdateRule};

use crate::adamw::{default_betas, default_eps, state_names};
use crate::elementwise::{Elementwise, Rule};
use crate::state::StateDtype;

/// Adam with L2 regularisation, in PyTorch's form: weight decay is added to the gradient, and so goes through the moments.
///
/// State: `exp_avg` and `exp_avg_sq`, with `amsgrad` also `max_exp_avg_sq`. Formula: [`AdamParams`]. Source: Kingma and Ba
/// 2015, arXiv:1412.6980.
pub type Adam = Elementwise<AdamConfig>;

/// `adam.Adam`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdamConfig {
    /// Peak learning rate; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Decay of the running means of the gradient and of its square.
    #[serde(default = "default_betas")]
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    #[serde(default = "default_eps")]
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// This times the weight is added to its gradient; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Divides by the largest second moment so far.
    #[serde(default)]
    pub amsgrad: bool,
    /// Number format of the moments; bf16 takes half the memory and needs `betas` of at most 0.995.
    #[serde(default)]
    pub state_dtype: StateDtype,
}

impl Rule for AdamConfig {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state_names(&self) -> &'static [&'static str] {
        state_names(self.amsgrad)
    }

    fn state_dtype(&self) -> StateDtype {
        self.state_dtype
    }

    fn update(&self, lr: f64, step: u64, decays: bool) -> UpdateRule {
        UpdateRule::Adam(AdamParams {
            lr,
            beta1: self.betas[0],
            beta2: self.betas[1],
            eps: self.eps,
            weight_decay: if decays { self.weight_decay } else { 0.0 },
            decoupled: false,
            amsgrad: self.amsgrad,
            step,
        })
    }

    fn check(&self) -> Result<(), String> {
        self.state_dtype.check(&self.betas)
    }
}
