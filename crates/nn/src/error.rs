//! Errors of modules and parameter trees.

use tt_tensor::Shape;

/// What can go wrong in a module or with parameters.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no parameter `{path}`")]
    UnknownParameter { path: String },
    #[error("two parameters are named `{path}`")]
    DuplicateParameter { path: String },
    #[error("`{path}` has shape {got:?}, the model needs {expected:?}")]
    ParameterShape {
        path: String,
        got: Shape,
        expected: Shape,
    },
    #[error("`{path}` cannot be drawn: its {what} is {value}")]
    Init {
        path: String,
        what: &'static str,
        value: f32,
    },
    #[error("`{pattern}` is no glob: {why}")]
    Glob { pattern: String, why: String },
    #[error("{positions} positions, but the model allows {max}")]
    TooLong { positions: usize, max: usize },
    #[error("`{module}` cannot use a key/value cache: {why}")]
    Cache { module: String, why: &'static str },
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;

/// For a module that is run again in the middle of the tape's work.
impl From<Error> for tt_tensor::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            other => Self::invalid("recompute", other.to_string()),
        }
    }
}
