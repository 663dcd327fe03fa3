//! AdamW: Adam with decoupled weight decay, in PyTorch's form with bias correction.
//!
//! Slots: `exp_avg` and `exp_avg_sq`, f32, of each parameter's shape. Source: Loshchilov and Hutter 2019,
//! arXiv:1711.05101.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Parameter, Tensor, fused};

use crate::error::Result;
use crate::{LoadSlot, Optimizer, Slot, StepContext};

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
}

fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn default_eps() -> f64 {
    1e-8
}

/// The optimizer; see the module.
pub struct AdamW {
    config: AdamWConfig,
    step: u64,
    entries: Vec<Entry>,
}

struct Entry {
    parameter: Arc<Parameter>,
    decays: bool,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

impl AdamW {
    /// Moments of zero for every trainable parameter.
    pub fn new(config: AdamWConfig, params: &ParamTree) -> Result<Self> {
        let trainable = params.iter().filter(|(_, p)| p.is_trainable());
        let entry = |(spec, parameter): (&ParamSpec, &Arc<Parameter>)| {
            let (shape, device) = (spec.shape.clone(), parameter.value().device());
            Ok(Entry {
                parameter: parameter.clone(),
                decays: spec.decays(),
                exp_avg: Tensor::zeros(shape.clone(), device)?,
                exp_avg_sq: Tensor::zeros(shape, device)?,
            })
        };
        Ok(Self {
            config,
            step: 0,
            entries: trainable.map(entry).collect::<Result<_>>()?,
        })
    }
}

impl Optimizer for AdamW {
    fn lr(&self) -> f64 {
        self.config.lr
    }

    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.step += 1;
        for entry in &self.entries {
            // A parameter that no loss depended on in this step keeps its value and its moments.
            let Some(grad) = entry.parameter.take_grad() else {
                continue;
            };
            let step = fused::AdamWStep {
                lr: context.lr,
                beta1: self.config.betas[0],
                beta2: self.config.betas[1],
                eps: self.config.eps,
                weight_decay: if entry.decays {
                    self.config.weight_decay
                } else {
                    0.0
                },
                step: self.step,
            };
            let (m, v) = (&entry.exp_avg, &entry.exp_avg_sq);
            let value = entry.parameter.value();
            fused::adamw_step(&step, &value, &grad, &context.grad_scale, m, v)?;
        }
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.step
    }

    fn slots(&self) -> Vec<Slot> {
        let of = |entry: &Entry, name, value: &Tensor| Slot {
            parameter: entry.parameter.path().to_owned(),
            name,
            value: value.clone(),
        };
        self.entries
            .iter()
            .flat_map(|e| {
                [
                    of(e, "exp_avg", &e.exp_avg),
                    of(e, "exp_avg_sq", &e.exp_avg_sq),
                ]
            })
            .collect()
    }

    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.step = steps;
        for entry in &mut self.entries {
            let path = entry.parameter.path();
            entry.exp_avg = load(path, "exp_avg")?;
            entry.exp_avg_sq = load(path, "exp_avg_sq")?;
        }
        Ok(())
    }
}
