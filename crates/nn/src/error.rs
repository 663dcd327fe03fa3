//! Errors of modules and parameter trees.

use tt_tensor::Shape;

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
    #[error("{positions} positions, but the model allows {max}")]
    TooLong { positions: usize, max: usize },
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
