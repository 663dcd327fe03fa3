//! Errors of sharding.

/// What cannot be shared out, or why ranks do not work together any more.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key of `model.sharding` that stands for nothing.
    #[error("`{path}` is no parameter or module of this model{}", suggestion(.near))]
    NoSuchPath { path: String, near: Option<String> },
    #[error("`{path}`: no axis is called `{name}`; there are data, fsdp, tensor, expert, context")]
    NoSuchAxis { path: String, name: String },
    #[error("`{path}` names {named} dims, and `{parameter}` has {dims}")]
    WrongRank {
        path: String,
        named: usize,
        parameter: String,
        dims: usize,
    },
    #[error("`{path}` has the axis `{axis}` twice")]
    Twice { path: String, axis: &'static str },
    #[error(
        "`{path}`: activations are shared out by rows, [[data, fsdp], null, ...], and in no other way yet"
    )]
    Activation { path: String },
    #[error("cannot start a thread to gather weights: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Glob(#[from] tt_nn::Error),
    #[error(transparent)]
    Dist(#[from] tt_dist::Error),
    #[error(transparent)]
    Tensor(#[from] tt_tensor::Error),
}

fn suggestion(near: &Option<String>) -> String {
    match near {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    }
}

/// For hooks, which the tape calls.
impl From<Error> for tt_tensor::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            other => Self::invalid("sharding", other.to_string()),
        }
    }
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
