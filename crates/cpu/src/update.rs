//! The formulas of optimizers whose step treats every weight alike.
//!
//! One weight `p` with the gradient `g`, after it was multiplied by the gradient scale; `t` counts steps from 1.
//! All are PyTorch's forms, so that rates and other options carry over.

/// How a step changes a weight. [`UpdateRule::num_states`] tells how many state tensors of the weights' shape it keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// `p = keep*p - rate*g`, without state: plain SGD, or an update that was worked out before.
    Descend { keep: f64, rate: f64 },
    /// Adam and AdamW.
    Adam(AdamParams),
    /// SGD with momentum, state `m`: `g += weight_decay*p`; `m = momentum*m + (1-dampening)*g`, at the first step `m = g`;
    /// `p -= lr*m`, or with `nesterov` `p -= lr*(g + momentum*m)`.
    Momentum {
        lr: f64,
        momentum: f64,
        dampening: f64,
        nesterov: bool,
        weight_decay: f64,
        is_first: bool,
    },
    /// State `m`: `p *= 1-lr*weight_decay`; `p -= lr*sign(beta1*m + (1-beta1)*g)` with `sign(0) = 0`;
    /// `m = beta2*m + (1-beta2)*g`. Source: Chen et al. 2023, arXiv:2302.06675.
    Lion {
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
    },
    /// State `s`: `g += weight_decay*p`; `s += g*g`; `p -= lr*g / (sqrt(s) + eps)`. Source: Duchi et al. 2011.
    Adagrad {
        lr: f64,
        eps: f64,
        weight_decay: f64,
    },
    /// State `s`: `g += weight_decay*p`; `s = alpha*s + (1-alpha)*g*g`; `p -= lr*g / (sqrt(s) + eps)`.
    RmsProp {
        lr: f64,
        alpha: f64,
        eps: f64,
        weight_decay: f64,
    },
}

/// Adam, states `m` and `v`: `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g;`
/// `p -= lr/(1-b1^t) * m / (sqrt(v/(1-b2^t)) + eps)`. Weight decay is added to `g`, or if `decoupled` (AdamW) taken off
/// first, `p *= 1-lr*weight_decay`. With `amsgrad` a third state, the largest `v` so far, stands for `v` in the step.
/// Sources: Kingma and Ba 2015, arXiv:1412.6980; Loshchilov and Hutter 2019, arXiv:1711.05101; Reddi et al. 2018.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamParams {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub decoupled: bool,
    pub amsgrad: bool,
    /// `t`, from 1.
    pub step: u64,
}

impl UpdateRule {
    /// The most states that a rule has.
    pub const MAX_STATES: usize = 3;

    /// State tensors that the rule reads and writes, in the order of its documentation.
    pub fn num_states(&self) -> usize {
        match self {
            Self::Descend { .. } => 0,
            Self::Adam(adam) => 2 + usize::from(adam.amsgrad),
            _ => 1,
        }
    }
}
