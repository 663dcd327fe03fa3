//! Errors of optimizers and schedules.

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

pub type Result<T> = std::result::Result<T, Error>;
