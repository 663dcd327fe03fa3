//! Optimizers that treat every weight alike: a rule for one weight, applied by one kernel.
//!
//! The state is a few tensors of each parameter's shape, in f32, or in bf16 where the rule allows it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use tt_config::{Diagnostics, Section};
use tt_nn::ParamTree;
use tt_tensor::{Parameter, Tensor, UpdateRule, fused};

use crate::error::Result;
use crate::metrics::{Metric, StepMetrics};
use crate::state::{StateDtype, restored};
use crate::{LoadSlot, MakeOptimizer, Optimizer, Slot, StepContext};

/// What an elementwise optimizer's config tells about it.
pub trait Rule: Send + 'static {
    /// Peak learning rate.
    fn lr(&self) -> f64;

    /// Names of the state tensors, in the order in which the kernel takes them.
    fn state_names(&self) -> &'static [&'static str];

    /// What its state is kept in.
    fn state_dtype(&self) -> StateDtype {
        StateDtype::F32
    }

    /// What state tensors are filled with at the start.
    fn initial_state(&self) -> f32 {
        0.0
    }

    /// The update of step `step`, counted from 1, of a parameter that decays or does not.
    fn update(&self, lr: f64, step: u64, decays: bool) -> UpdateRule;

    /// Whether the share of weights that move against their gradient is worth a look.
    fn reports_sign_agreement(&self) -> bool {
        false
    }

    /// What no single option shows to be wrong.
    fn check(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// An optimizer by its rule, which is its config.
pub struct Elementwise<R> {
    rule: R,
    step: u64,
    entries: Vec<Entry>,
    metrics: StepMetrics,
}

struct Entry {
    parameter: Arc<Parameter>,
    decays: bool,
    /// One for each of the rule's names.
    states: Vec<Tensor>,
}

impl<R: Rule> Elementwise<R> {
    /// Fresh state for every trainable parameter.
    pub fn new(rule: R, params: &ParamTree) -> Result<Self> {
        let mut entries = Vec::new();
        for (spec, parameter) in params.iter().filter(|(_, p)| p.is_trainable()) {
            let value = parameter.value();
            let state = |_| {
                let state =
                    Tensor::full(rule.initial_state(), value.shape().clone(), value.device())?;
                Ok(state.to_dtype(rule.state_dtype().dtype())?)
            };
            entries.push(Entry {
                parameter: parameter.clone(),
                decays: spec.decays(),
                states: (0..rule.state_names().len())
                    .map(state)
                    .collect::<Result<_>>()?,
            });
        }
        Ok(Self {
            rule,
            step: 0,
            entries,
            metrics: StepMetrics::default(),
        })
    }
}

/// Reads an elementwise optimizer's config: what the table's entries build with.
pub(crate) fn build<R>(kwargs: &Section<'_>) -> std::result::Result<MakeOptimizer, Diagnostics>
where
    R: Rule + DeserializeOwned + schemars::JsonSchema,
{
    let rule: R = kwargs.extract()?;
    rule.check().map_err(|why| kwargs.error(why))?;
    Ok(Box::new(|params| {
        Ok(Box::new(Elementwise::new(rule, params)?))
    }))
}

impl<R: Rule> Optimizer for Elementwise<R> {
    fn lr(&self) -> f64 {
        self.rule.lr()
    }

    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.step += 1;
        let parameters = self.entries.iter().map(|entry| &entry.parameter);
        self.metrics.start(context, parameters)?;
        for (slot, entry) in self.entries.iter().enumerate() {
            // A parameter that no loss depended on in this step keeps its value and its state.
            let Some(grad) = entry.parameter.take_grad() else {
                continue;
            };
            let update = self.rule.update(context.lr, self.step, entry.decays);
            fused::optimizer_step(
                &update,
                &entry.parameter.value(),
                &grad,
                &context.grad_scale,
                &entry.states.iter().collect::<Vec<_>>(),
                self.metrics.slot(slot),
            )?;
        }
        Ok(())
    }

    fn metrics(&self) -> Result<Vec<Metric>> {
        self.metrics.named(self.rule.reports_sign_agreement())
    }

    fn steps(&self) -> u64 {
        self.step
    }

    fn slots(&self) -> Vec<Slot> {
        let names = self.rule.state_names();
        let of_entry = |entry: &Entry| {
            let parameter = entry.parameter.clone();
            let states = names.iter().zip(entry.states.clone());
            let slots = states.map(move |(name, value)| Slot {
                parameter: parameter.path().to_owned(),
                name,
                shard: parameter.shard().clone(),
                value,
            });
            slots.collect::<Vec<_>>()
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.step = steps;
        for entry in &mut self.entries {
            for (name, state) in self.rule.state_names().iter().zip(&mut entry.states) {
                let parameter = &entry.parameter;
                *state = restored(load, parameter.path(), name, parameter.shard(), state)?;
            }
        }
        Ok(())
    }
}
