//! Errors of optimizers and schedules.

/// What can go wrong in making an optimizer, a step, or in taking up a state.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Whose error it is.
    #[error("the optimizer {optimizer}: {error}")]
    In {
        optimizer: String,
        error: Box<Error>,
    },
    /// An optimizer that breaks its contract.
    #[error("{0}")]
    Contract(String),
    #[error("optimizer state `{slot}` of `{parameter}`: {why}")]
    State {
        parameter: String,
        slot: &'static str,
        why: String,
    },
    #[error("`adamw_parameters`: `{glob}` matches no weight of a linear layer")]
    Unmatched { glob: String },
    #[error(transparent)]
    Nn(#[from] tt_nn::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

impl Error {
    /// Whether a saved state does not fit.
    pub fn is_state(&self) -> bool {
        match self {
            Self::In { error, .. } => error.is_state(),
            other => matches!(other, Self::State { .. }),
        }
    }
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
