//! Errors of model construction and of the forward pass.

/// What can go wrong in building a model, or in its forward pass.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be built; says which key and why.
    #[error("model: `{key}`: {why}")]
    Config { key: &'static str, why: String },
    #[error("config.json: {0}")]
    HfConfig(String),
    #[error("the head of this model is more than a weight: a loss must ask for `Model::output`")]
    MoreThanAWeight,
    /// A model that breaks its contract.
    #[error("the model: {what} is {got} where {due} is due")]
    Contract {
        /// The method of [`Model`](crate::Model) that gave it.
        what: &'static str,
        got: String,
        due: String,
    },
    #[error(transparent)]
    Nn(#[from] tt_nn::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
