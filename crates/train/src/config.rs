//! The group `trainer`: how long, in which batches, with which optimizer, and what is done on the way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_checkpoint::CheckpointConfig;
use tt_config::Ordered;
use tt_optimizers::ScheduleConfig;

use crate::error::{Error, Result};
use crate::guard::BadStepsConfig;
use crate::loss_scale::LossScaleConfig;
use crate::spikes::SpikeGuardConfig;
use crate::training::Clipping;

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainerConfig {
    /// The trainer: `file.Type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Options of the trainer, by name.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
    /// Optimizer steps of the whole run; null: until `num_epochs` are over, or 500 if that is null too.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_steps: Option<u64>,
    /// Passes over the training data; null: until `max_steps` are done. With both, what comes first ends the run.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub num_epochs: Option<u64>,
    /// Rows of an optimizer step. Rows beyond `micro_batch_size` are handled one micro-batch after the other.
    #[schemars(range(min = 1))]
    pub global_batch_size: usize,
    /// Rows held in memory at once; divides `global_batch_size`. Null: the largest divisor of it that is at most 4.
    #[schemars(with = "Option<usize>", range(min = 1))]
    pub micro_batch_size: usize,
    /// Steps between checkpoints; null: only at the end.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub checkpoint_interval: Option<u64>,
    /// Which checkpoints are kept.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// Steps between validations; null: only at the end.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub eval_interval: Option<u64>,
    /// Steps between sampled continuations; null: only at the end.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub sample_interval: Option<u64>,
    /// What is sampled.
    #[serde(default)]
    pub sample: SampleConfig,
    /// Steps between progress lines where there is no terminal.
    #[serde(default = "default_log_interval")]
    #[schemars(range(min = 1))]
    pub log_interval: u64,
    /// Gradients are scaled down to this global L2 norm; null: not clipped.
    #[serde(default)]
    #[schemars(range(min = 1e-9))]
    pub max_grad_norm: Option<f64>,
    /// After that, each element of a gradient is bounded by this in both directions; null: not clipped.
    #[serde(default)]
    #[schemars(range(min = 1e-9))]
    pub max_grad_value: Option<f64>,
    /// What is done about a step whose loss or gradient is not finite.
    #[serde(default)]
    pub bad_steps: BadStepsConfig,
    /// What is done about a step with an unusually high loss or gradient norm.
    #[serde(default)]
    pub spike_guard: SpikeGuardConfig,
    /// How the loss is scaled with `precision: fp16`.
    #[serde(default)]
    pub loss_scale: LossScaleConfig,
    /// What changes the weights.
    #[serde(default)]
    pub optimizer: Option<OptimizerConfig>,
    /// How the learning rate changes over the run.
    #[serde(default)]
    pub lr_scheduler: Option<ScheduleConfig>,
    /// Further optimizers by name, each for parameters of its own; `optimizer` has the rest.
    #[serde(default)]
    pub multiple_optimizers: Option<Ordered<OptimizerGroupConfig>>,
    /// What is done on resume if the checkpoint has the state of another optimizer.
    #[serde(default)]
    pub on_optimizer_change: OnOptimizerChange,
    /// Logs the optimizers' metrics every `log_interval` steps: how far weights move, and what each has of its own.
    #[serde(default)]
    pub optimizer_metrics: bool,
}

/// `trainer.on_optimizer_change`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOptimizerChange {
    /// The run is refused.
    #[default]
    Refuse,
    /// It goes on with the weights, the step and the data position, and an empty state of the optimizer.
    Fresh,
}

impl TrainerConfig {
    /// How gradients are bounded.
    pub(crate) fn clipping(&self) -> Clipping {
        Clipping {
            max_norm: self.max_grad_norm,
            max_value: self.max_grad_value,
        }
    }

    /// The length of a run if none is given.
    pub const DEFAULT_STEPS: u64 = 500;

    /// With that length if none is given.
    #[must_use]
    pub fn with_length(mut self) -> Self {
        if self.num_epochs.is_none() {
            self.max_steps.get_or_insert(Self::DEFAULT_STEPS);
        }
        self
    }

    /// What no single key shows to be wrong. Error: `Config`, with the key to change.
    pub fn check(&self) -> Result<()> {
        let fail = |key, why| Err(Error::Config { key, why });
        let (global, micro) = (self.global_batch_size, self.micro_batch_size);
        if micro == 0 || !global.is_multiple_of(micro) {
            let why = format!("{global} is no multiple of `trainer.micro_batch_size` {micro}");
            return fail("trainer.global_batch_size", why);
        }
        Ok(())
    }
}

/// `trainer.optimizer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The optimizer: `file.Type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Options of the optimizer, by name.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// One of `trainer.multiple_optimizers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizerGroupConfig {
    /// Which parameters it has, by globs over their paths, `model.layers.*.mlp.**`; the first optimizer that matches has a
    /// parameter. Null: what no other has.
    #[serde(default)]
    pub parameters: Option<Vec<String>>,
    /// What changes them.
    pub optimizer: OptimizerConfig,
    /// How its learning rate changes; null: as `trainer.lr_scheduler` says.
    #[serde(default)]
    pub lr_scheduler: Option<ScheduleConfig>,
}

/// `trainer.sample`: continuations of validation rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// How many continuations are shown; 0 for none.
    pub count: usize,
    /// Tokens of a validation document that are given.
    #[schemars(range(min = 1))]
    pub prompt_tokens: usize,
    /// Tokens to add at most.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    #[schemars(range(min = 0.0))]
    pub temperature: f32,
    /// Tokens are drawn from the smallest set that reaches this probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: f32,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            count: 3,
            prompt_tokens: 12,
            max_new_tokens: 64,
            temperature: 0.7,
            top_p: 0.95,
        }
    }
}

fn default_log_interval() -> u64 {
    10
}
