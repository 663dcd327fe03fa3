//! AdamW: Adam with decoupled weight decay, in PyTorch's form with bias correction.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::{AdamParams, UpdateRule};

use crate::elementwise::{Elementwise, Rule};
use crate::state::StateDtype;

/// AdamW: Adam with decoupled weight decay, in PyTorch's form with bias correction.
///
/// State: `exp_avg` and `exp_avg_sq`, with `amsgrad` also `max_exp_avg_sq`. Formula: [`AdamParams`]. Source: Loshchilov
/// and Hutter 2019, arXiv:1711.05101.
pub type AdamW = Elementwise<AdamWConfig>;

/// `adamw.AdamW`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdamWConfig {
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
    /// Share of a weight that `lr` times this removes each step; biases and norms are left alone.
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

impl AdamWConfig {
    /// The defaults of the options at a rate.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            betas: default_betas(),
            eps: default_eps(),
            weight_decay: 0.0,
            amsgrad: false,
            state_dtype: StateDtype::F32,
        }
    }
}

pub(crate) fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}

pub(crate) fn default_eps() -> f64 {
    1e-8
}

/// The state of Adam in all its forms.
pub(crate) fn state_names(amsgrad: bool) -> &'static [&'static str] {
    if amsgrad {
        &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    } else {
        &["exp_avg", "exp_avg_sq"]
    }
}

impl Rule for AdamWConfig {
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
            decoupled: true,
            amsgrad: self.amsgrad,
            step,
        })
    }

    fn check(&self) -> Result<(), String> {
        self.state_dtype.check(&self.betas)
    }
}
