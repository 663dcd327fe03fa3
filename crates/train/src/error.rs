//! Errors of a training run.

use std::path::{Path, PathBuf};

use tt_nn::Error as NnError;

use crate::bad_step::BadStep;

/// What can end a training run, or keep it from starting.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be trained, found before the first step.
    #[error("`{key}`: {why}")]
    Config { key: &'static str, why: String },
    /// A checkpoint that does not belong to this run.
    #[error("checkpoint: {0}")]
    State(String),
    #[error(
        "checkpoint {checkpoint}: it has the state of the optimizer {saved}, which is nothing to {own}; \
         `trainer.on_optimizer_change=fresh` goes on with an empty state, \
         `resume=none model.pretrained_url={checkpoint}` begins a new run from its weights",
        checkpoint = checkpoint.display()
    )]
    OtherOptimizer {
        checkpoint: PathBuf,
        saved: String,
        own: String,
    },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A step that ends the run. No weight has changed; the state before it is in `checkpoint`, if a step had been made
    /// and its weights were finite.
    #[error("{bad}\n  {}", saved(bad, checkpoint.as_deref()))]
    BadStep {
        bad: Box<BadStep>,
        checkpoint: Option<PathBuf>,
    },
    #[error("no trainable parameter got a gradient at step {step}")]
    NoGradient { step: u64 },
    #[error(
        "the trainer asks for the field `{name}`, which the collator does not give; it gives {known}"
    )]
    NoField { name: String, known: String },
    /// A trainer that breaks its contract.
    #[error("the trainer: {0}")]
    Trainer(String),
    /// The weights after the last step are of no use, or the data; the checkpoint is there to be looked at.
    #[error("the validation loss after the last step is {loss}; the weights are in {}", checkpoint.display())]
    NonFiniteValidation { loss: f32, checkpoint: PathBuf },
    /// Two variants of a run that have not the same to compare.
    #[error("the variants cannot be compared: {0}")]
    Variants(String),
    /// Of one of several ranks, in whose work it may be that of another: where in the run it was.
    #[error("{when}: {error}")]
    OfRanks { when: String, error: Box<Error> },
    /// A step that was broken off, as the run is to stop: it goes on with this step.
    #[error("asked to stop in the middle of a step")]
    Stopped,
    #[error(
        "nothing to predict in {batches} global batches one after another, from {at} of the data on: the collator gives no \
         label that the loss counts"
    )]
    NothingToPredict { batches: u64, at: tt_data::Cursor },
    #[error("the training data ended before the first step")]
    NoData,
    #[error(transparent)]
    Checkpoint(#[from] tt_checkpoint::Error),
    #[error(transparent)]
    Weights(#[from] Box<tt_checkpoint::StrictError>),
    #[error(transparent)]
    Data(#[from] tt_data::DataError),
    #[error(transparent)]
    Engine(#[from] tt_engine::Error),
    #[error(transparent)]
    Disk(#[from] tt_disk::Error),
    #[error(transparent)]
    Metrics(#[from] tt_metrics::Error),
    #[error(transparent)]
    Model(#[from] tt_models::Error),
    #[error(transparent)]
    Nn(#[from] NnError),
    #[error(transparent)]
    Optimizer(#[from] tt_optimizers::Error),
    #[error(transparent)]
    Sharding(#[from] tt_sharding::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

impl Error {
    /// Whether all ranks of a run find it alike, in the data that they read or the sums that they share.
    pub(crate) fn is_of_all_ranks(&self) -> bool {
        matches!(
            self,
            Self::BadStep { .. }
                | Self::NoData
                | Self::NoGradient { .. }
                | Self::NonFiniteValidation { .. }
                | Self::NothingToPredict { .. }
        )
    }
}

fn saved(bad: &BadStep, checkpoint: Option<&Path>) -> String {
    match checkpoint.map(Path::display) {
        Some(path) if bad.is_in_weights() => {
            format!("nothing was saved; the last checkpoint is {path}")
        }
        None if bad.is_in_weights() => "nothing was saved".to_owned(),
        Some(path) => format!("no weight has changed: the state before the step is in {path}"),
        None => "no weight has changed".to_owned(),
    }
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
