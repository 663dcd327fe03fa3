//! Errors of optimizers and schedules.

/// What can go wrong in making an optimizer, a step, or in taking up a state.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
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

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
