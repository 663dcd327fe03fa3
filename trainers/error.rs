//! Errors of a training run.

use tt_nn::Error as NnError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be trained, found before the first step.
    #[error("`{key}`: {why}")]
    Config { key: &'static str, why: String },
    /// A checkpoint that does not belong to this run.
    #[error("checkpoint: {0}")]
    State(String),
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: std::path::PathBuf,
        source: std::io::Error,
    },
    #[error("loss is {loss} at step {step}")]
    NonFinite { step: u64, loss: f32 },
    #[error("no trainable parameter got a gradient at step {step}")]
    NoGradient { step: u64 },
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
    Metrics(#[from] tt_metrics::Error),
    #[error(transparent)]
    Model(#[from] tt_models::Error),
    #[error(transparent)]
    Nn(#[from] NnError),
    #[error(transparent)]
    Optimizer(#[from] tt_optimizers::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
