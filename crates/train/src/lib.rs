//! Training: the trait [`Trainer`], the optimizer step, and the loop around it.
//!
//! A trainer says what the loss of a batch is; the rest has defaults. Those there are live in `trainers/`.
//!
//! ```
//! use tt_models::Model;
//! use tt_nn::Forward;
//! use tt_tensor::{CrossEntropyParams, fused};
//! use tt_train::{DeviceBatch, Loss, Trainer};
//!
//! struct Plain;
//!
//! impl Trainer for Plain {
//!     fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> tt_train::Result<Loss> {
//!         let hidden = model.hidden_states(fwd, &batch.input)?;
//!         let params = CrossEntropyParams { ignore_index: -100, label_smoothing: 0.0, z_loss: 0.0 };
//!         let loss = fused::linear_cross_entropy(&hidden, &model.head(fwd)?, &batch.targets, params)?;
//!         Ok(Loss { sum: loss.sum, weight: loss.count, scalars: vec![] })
//!     }
//! }
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod adapted;
mod bad_step;
mod bad_step_dump;
mod base;
mod bench;
pub mod compare;
mod config;
mod device_batch;
mod device_memory;
mod diagnosis;
mod error;
mod evaluation;
mod finding;
mod guard;
mod histograms;
mod initial;
mod job;
mod loss;
mod loss_scale;
mod mirror;
mod module_spans;
mod reduce;
mod rehearsal;
mod run;
mod saved_tensor;
mod share;
mod snapshot;
mod spikes;
mod state;
mod step;
mod stop;
mod token_ids;
mod totals;
mod trace;
mod training;
mod utilization;
mod validation;
mod weights;

use serde_json::Value;
use tt_adapters::{BaseDType, LoraConfig};
use tt_collators::{Batch, Pipeline};
use tt_config::{Diagnostics, Section};
use tt_models::Model;
use tt_nn::Forward;

pub use adapted::{Adapted, draw_base, load_adapter, load_base};
pub use bad_step::BadStep;
pub use base::{Base, BaseOrigin};
pub use bench::{TimedSave, TimedStep, random_batches, timed_load, timed_save, timed_step};
pub use config::{
    OnOptimizerChange, OptimizerConfig, OptimizerGroupConfig, SampleConfig, TrainerConfig,
};
pub use device_batch::DeviceBatch;
pub use error::{Error, Result};
pub use evaluation::{Evaluation, Look, Tally, TextLoss, count, look};
pub use finding::{ChangedBy, Finding, Place, Values};
pub use guard::{BadStepAction, BadStepsConfig, Cause, GuardState, StepGuard, Verdict};
pub use initial::Initial;
pub use job::{Ending, Outcome, Prepared, TrainJob, check_length, check_vocabulary};
pub use loss::{Loss, Mean};
pub use loss_scale::LossScaleConfig;
pub use mirror::Mirror;
pub use reduce::{Local, Ranks, Reduce};
pub use rehearsal::{Footprint, ParameterCount, Rehearsal};
pub use share::Share;
pub use spikes::{Spike, SpikeAction, SpikeGuardConfig};
pub use state::{OptimizerState, TrainState};
pub use step::{Judgement, StepOutput};
pub use stop::StopFlag;
pub use token_ids::TokenIds;
pub use totals::{StepNumbers, Totals};
pub use trace::{Budget, OperationCost, ProfileConfig, TraceFormat, budget};
pub use training::{Clipping, StepTimes, Training};
pub use utilization::{Utilization, measured_peak_flops, model_flops};
pub use weights::{
    check_weights, lacks_head, load_body, load_params, load_parts, load_to_train, passed_over,
};

pub use tt_collators::{IGNORE, Prediction};

/// What is learned, and how a step is made.
pub trait Trainer: Send {
    /// Called once before the first step, also when resuming.
    fn post_init(&mut self, _training: &mut Training) -> Result<()> {
        Ok(())
    }

    /// Whether the trainer needs the model as it is before the first step beside the one that is trained, and what its matrices
    /// are to be held in: it is [`Training::initial`] then, in a run that goes on too. `adapter` is the one that is trained.
    fn initial_model(&self, _adapter: Option<&LoraConfig>) -> Result<Option<BaseDType>> {
        Ok(None)
    }

    /// Called once after [`Trainer::post_init`], before data is read for the first step: to look at the data, or to have a
    /// number more in each row of its batches ([`Pipeline::add_row_values`]). What it gives is said in the log.
    fn prepare_data(
        &mut self,
        _training: &mut Training,
        _data: &mut Pipeline,
    ) -> Result<Option<String>> {
        Ok(None)
    }

    /// What the loss must know of the whole step before its first micro-batch, such as the divisor of a second term: numbers
    /// of this batch, whose sums over the step, or over all of validation, are [`DeviceBatch::counts`].
    fn counts(&self, _batch: &Batch) -> Vec<f32> {
        Vec::new()
    }

    /// The loss of a batch. `fwd` is recorded in training and not in validation.
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss>;

    /// Whether [`Trainer::loss`] in validation is the plain cross-entropy of the targets. If not, validation computes that
    /// too, in a pass of its own: it is `val_loss`, which runs and baselines are compared by, and the loss `val_objective`.
    fn validates_by_cross_entropy(&self) -> bool {
        false
    }

    /// One optimizer step from its micro-batches. Error: [`Error::Stopped`] if the run is to stop before it is made, and
    /// the step is made again by the run that goes on; state of the trainer's own must not have changed then.
    fn train_step(
        &mut self,
        training: &mut Training,
        micro_batches: &[Batch],
    ) -> Result<StepOutput> {
        training.count(micro_batches, |batch| self.counts(batch))?;
        let mut totals = training.accumulate(micro_batches, |fwd, model, batch| {
            self.loss(fwd, model, batch)
        })?;
        training.reduce(&mut totals)?;
        let judgement = training.judge(&totals)?;
        training.take_step(judgement)
    }

    /// State of the trainer's own that a checkpoint must carry.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Takes up what [`Trainer::state`] gave.
    fn restore(&mut self, _state: &Value) -> Result<()> {
        Ok(())
    }
}

/// Builds a trainer from `trainer.kwargs`.
pub type BuildTrainer = fn(&Section<'_>) -> std::result::Result<Box<dyn Trainer>, Diagnostics>;
