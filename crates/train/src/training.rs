//! A run's changing parts. What a step does with them is in [`crate::step`].

use std::sync::Arc;
use std::time::Duration;

use tt_metrics::Histogram;
use tt_models::{Checked, Model};
use tt_nn::{Forward, ParamTree, Recompute};
use tt_optimizers::Optimizers;
use tt_sharding::Sharded;
use tt_tensor::{Device, GradientHook, Precision, Seed, Tape, profile};

use crate::adapted::Adapted;
use crate::config::TrainerConfig;
use crate::device_memory::{MemoryRecord, Moment};
use crate::guard::StepGuard;
use crate::initial::Initial;
use crate::module_spans::ModuleSpans;
use crate::reduce::{Local, Ranks, Reduce};
use crate::stop::StopFlag;

/// Model, parameters, optimizers and position of a run.
pub struct Training {
    /// What is trained.
    pub model: Arc<dyn Model>,
    /// Its parameters.
    pub params: ParamTree,
    /// What changes them.
    pub optimizers: Optimizers,
    /// How gradients are bounded.
    pub clipping: Clipping,
    /// Every how many steps the optimizers' metrics are made.
    pub metrics_interval: Option<u64>,
    /// Every how many steps the elements of gradients and weights are counted.
    pub histogram_interval: Option<u64>,
    /// Where it is trained.
    pub device: Device,
    /// Root of the run's randomness.
    pub seed: Seed,
    /// Modules that are run again in the backward pass.
    pub recompute: Option<Arc<dyn Recompute>>,
    /// What products are computed in.
    pub precision: Precision,
    /// Present if an adapter is trained and not the whole model.
    pub adapter: Option<Adapted>,
    /// The model before the first step, if the trainer asks for it ([`Trainer::initial_model`](crate::Trainer::initial_model)).
    pub initial: Option<Initial>,
    /// Steps done, those that were skipped included.
    pub step: u64,
    /// Decides which steps reach the weights.
    pub guard: StepGuard,
    /// Brings this rank's part of a step together with the others'.
    pub reduce: Box<dyn Reduce>,
    /// The ranks that share the parameters, if there are several.
    pub(crate) ranks: Option<Arc<Sharded>>,
    /// Asks for the end of the run, in the middle of a step too.
    pub stop: StopFlag,
    /// Parameters that the first step of this process had no gradient for, until they are told.
    pub(crate) without_gradient: Option<Vec<String>>,
    /// Of the step that is being made: see [`Trainer::counts`](crate::Trainer::counts).
    pub(crate) counts: Vec<f32>,
    /// Of the step that is being made, if they are due.
    pub(crate) histograms: Option<Vec<Histogram>>,
    /// Kept from step to step, so that recording does not allocate.
    pub(crate) tape: Tape,
    /// Of the step that is being made.
    pub(crate) times: StepTimes,
    /// Of the steps that are traced.
    pub(crate) memory: Option<Arc<MemoryRecord>>,
}

/// What the parts of a step took.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTimes {
    /// Of all micro-batches, the copies to the device included.
    pub forward: Duration,
    /// Of all micro-batches.
    pub backward: Duration,
    /// Bringing sums and gradients together with other ranks', but for what is summed during the backward pass.
    pub sync: Duration,
    /// Judging and the optimizers.
    pub optimizer: Duration,
}

/// How gradients of the mean loss are bounded: first all by their norm, then each element by its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clipping {
    /// Greatest global norm.
    pub max_norm: Option<f64>,
    /// Greatest absolute value of an element.
    pub max_value: Option<f64>,
}

impl Training {
    /// A run at its first step.
    pub fn new(
        model: Arc<dyn Model>,
        params: ParamTree,
        optimizers: Optimizers,
        seed: Seed,
        device: Device,
    ) -> Self {
        Self {
            model: Arc::new(Checked(model)),
            params,
            optimizers,
            clipping: Clipping::default(),
            metrics_interval: None,
            histogram_interval: None,
            device,
            seed,
            recompute: None,
            adapter: None,
            initial: None,
            precision: Precision::default(),
            step: 0,
            guard: StepGuard::default(),
            reduce: Box::new(Local),
            ranks: None,
            stop: StopFlag::default(),
            without_gradient: None,
            counts: Vec::new(),
            histograms: None,
            tape: Tape::new(),
            times: StepTimes::default(),
            memory: None,
        }
    }

    /// Bounds gradients, guards steps and computes as `config` and `precision` say.
    pub fn configure(&mut self, config: &TrainerConfig, precision: Precision) {
        self.clipping = config.clipping();
        self.metrics_interval = config.optimizer_metrics.then_some(config.log_interval);
        self.precision = precision;
        let guard = StepGuard::new(&config.bad_steps, &config.spike_guard);
        self.guard = if precision == Precision::F16 {
            guard.with_loss_scale(&config.loss_scale)
        } else {
            guard
        };
    }

    /// Shares every step with other ranks. `params` are those of `ranks`, which gather them.
    pub fn share_with(&mut self, ranks: Arc<Sharded>) {
        self.reduce = Box::new(Ranks(ranks.clone()));
        if ranks.sums_at_once() {
            let ranks = ranks.clone();
            self.on_gradient(Arc::new(move |parameter| Ok(ranks.sum_now(parameter)?)));
        }
        self.ranks = Some(ranks);
    }

    /// Those that share the parameters, if there are several.
    pub fn ranks(&self) -> Option<&Arc<Sharded>> {
        self.ranks.as_ref()
    }

    /// Calls `hook` with each parameter whose gradient for a micro-batch is complete.
    pub(crate) fn on_gradient(&self, hook: GradientHook) {
        self.tape.on_gradient(hook);
    }

    /// For a trace, if one is taken.
    pub(crate) fn look_at_memory(&self, moment: Moment) {
        if let Some(memory) = &self.memory {
            memory.look_at(&self.optimizers, moment);
        }
    }

    /// The context in which micro-batch `micro` is trained on once `steps` are done.
    pub(crate) fn forward(&self, tape: &Tape, steps: u64, micro: usize) -> Forward {
        let seed = self.seed.fold_str("dropout").fold(steps);
        let fwd = Forward::training(&self.params, tape, seed.fold(micro as u64))
            .with_precision(self.precision);
        let fwd = if profile::is_on() {
            fwd.with_hooks(Arc::new(ModuleSpans::new(self.memory.clone())))
        } else {
            fwd
        };
        match &self.recompute {
            Some(recompute) => fwd.with_recompute(recompute.clone()),
            None => fwd,
        }
    }
}
