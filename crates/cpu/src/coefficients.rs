//! What the formula of an [`UpdateRule`] multiplies by in one step: made in f64 and rounded to f32 once, so that every
//! device computes with the same numbers.

use crate::{AdamParams, UpdateRule};

/// `l2 * p` is added to the gradient, `keep * p` is what decay leaves of a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    pub l2: f32,
    pub keep: f32,
    pub formula: Formula,
}

/// The rest of the step, by rule; `g` is the gradient after scaling and `l2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    /// `p = keep*p - rate*g`.
    Descend { rate: f32 },
    /// `m`, `v`; with `amsgrad` also the largest `v`.
    Adam(Adam),
    /// `m`.
    Momentum(Momentum),
    /// `m`.
    Lion(Lion),
    /// `s`.
    Adagrad { lr: f32, eps: f32 },
    /// `s`.
    RmsProp(RmsProp),
}

/// `m = beta1*m + one_minus_beta1*g; v = beta2*v + one_minus_beta2*g*g;`
/// `p = keep*p - step_size*m / (sqrt(v)*inv_sqrt_correction2 + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub beta1: f32,
    pub one_minus_beta1: f32,
    pub beta2: f32,
    pub one_minus_beta2: f32,
    pub step_size: f32,
    pub inv_sqrt_correction2: f32,
    pub eps: f32,
    pub amsgrad: bool,
}

/// `m = momentum*m + one_minus_dampening*g; p -= lr*(of_grad*g + of_buffer*m)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    pub lr: f32,
    pub momentum: f32,
    pub one_minus_dampening: f32,
    pub of_grad: f32,
    pub of_buffer: f32,
}

/// `p = keep*p - lr*sign(beta1*m + one_minus_beta1*g); m = beta2*m + one_minus_beta2*g`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    pub lr: f32,
    pub beta1: f32,
    pub one_minus_beta1: f32,
    pub beta2: f32,
    pub one_minus_beta2: f32,
}

/// `s = alpha*s + one_minus_alpha*g*g; p -= lr*g / (sqrt(s) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    pub lr: f32,
    pub alpha: f32,
    pub one_minus_alpha: f32,
    pub eps: f32,
}

impl Adam {
    fn new(a: &AdamParams) -> Self {
        let steps = a.step as f64;
        Self {
            beta1: a.beta1 as f32,
            one_minus_beta1: (1.0 - a.beta1) as f32,
            beta2: a.beta2 as f32,
            one_minus_beta2: (1.0 - a.beta2) as f32,
            step_size: (a.lr / (1.0 - a.beta1.powf(steps))) as f32,
            inv_sqrt_correction2: (1.0 / (1.0 - a.beta2.powf(steps)).sqrt()) as f32,
            eps: a.eps as f32,
            amsgrad: a.amsgrad,
        }
    }
}

impl UpdateRule {
    pub fn coefficients(&self) -> Coefficients {
        let (l2, keep, formula) = match *self {
            Self::Descend { keep, rate } => (0.0, keep, Formula::Descend { rate: rate as f32 }),
            Self::Adam(a) => {
                let (l2, keep) = match a.decoupled {
                    true => (0.0, 1.0 - a.lr * a.weight_decay),
                    false => (a.weight_decay, 1.0),
                };
                (l2, keep, Formula::Adam(Adam::new(&a)))
            }
            Self::Momentum {
                lr,
                momentum,
                dampening,
                nesterov,
                weight_decay,
                is_first,
            } => {
                let formula = Momentum {
                    lr: lr as f32,
                    momentum: if is_first { 0.0 } else { momentum as f32 },
                    one_minus_dampening: if is_first {
                        1.0
                    } else {
                        (1.0 - dampening) as f32
                    },
                    of_grad: if nesterov { 1.0 } else { 0.0 },
                    of_buffer: if nesterov { momentum as f32 } else { 1.0 },
                };
                (weight_decay, 1.0, Formula::Momentum(formula))
            }
            Self::Lion {
                lr,
                beta1,
                beta2,
                weight_decay,
            } => {
                let formula = Lion {
                    lr: lr as f32,
                    beta1: beta1 as f32,
                    one_minus_beta1: (1.0 - beta1) as f32,
                    beta2: beta2 as f32,
                    one_minus_beta2: (1.0 - beta2) as f32,
                };
                (0.0, 1.0 - lr * weight_decay, Formula::Lion(formula))
            }
            Self::Adagrad {
                lr,
                eps,
                weight_decay,
            } => {
                let (lr, eps) = (lr as f32, eps as f32);
                (weight_decay, 1.0, Formula::Adagrad { lr, eps })
            }
            Self::RmsProp {
                lr,
                alpha,
                eps,
                weight_decay,
            } => {
                let formula = RmsProp {
                    lr: lr as f32,
                    alpha: alpha as f32,
                    one_minus_alpha: (1.0 - alpha) as f32,
                    eps: eps as f32,
                };
                (weight_decay, 1.0, Formula::RmsProp(formula))
            }
        };
        Coefficients {
            l2: l2 as f32,
            keep: keep as f32,
            formula,
        }
    }
}
