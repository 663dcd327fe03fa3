//! Errors of tensor operations; they carry the operands that do not fit.

use candle_core::{DType, Shape};

/// What can go wrong in a tensor operation.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{op}: shapes {lhs:?} and {rhs:?} do not fit")]
    ShapeMismatch {
        op: &'static str,
        lhs: Shape,
        rhs: Shape,
    },
    #[error("{op}: dtype {got:?}, expected {expected:?}")]
    DTypeMismatch {
        op: &'static str,
        got: DType,
        expected: DType,
    },
    /// A value that a parameter cannot take.
    #[error("`{path}` is {expected} and is to be set to {got}")]
    Parameter {
        path: String,
        expected: String,
        got: String,
    },
    #[error("{op}: operands are on different devices")]
    DeviceMismatch { op: &'static str },
    #[error("{op}: {why}")]
    Invalid { op: &'static str, why: String },
    #[error(transparent)]
    Tpu(#[from] tt_tpu::Error),
    #[error(transparent)]
    Backend(#[from] candle_core::Error),
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn shapes(op: &'static str, lhs: &Shape, rhs: &Shape) -> Self {
        let (lhs, rhs) = (lhs.clone(), rhs.clone());
        Self::ShapeMismatch { op, lhs, rhs }
    }

    /// An error that needs words: `why` completes "`op`: ...".
    pub fn invalid(op: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid {
            op,
            why: why.into(),
        }
    }
}
