//! What ends the program early, and the exit code it ends with.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tt_config::Diagnostics;
use tt_data::DataError;

/// An error with the side that has to act on it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is wrong; each problem says where.
    Config(Diagnostics),
    /// The request is wrong in another way: files, folders, arguments.
    Request(anyhow::Error),
    /// The request was right and the run failed.
    Run(anyhow::Error),
}

impl Failure {
    pub(crate) fn request(error: impl Into<anyhow::Error>) -> Self {
        Self::Request(error.into())
    }

    pub(crate) fn run(error: impl Into<anyhow::Error>) -> Self {
        Self::Run(error.into())
    }

    /// The error itself, with its backtrace if there is one; diagnostics say all they know when displayed.
    pub(crate) fn error(&self) -> Option<&anyhow::Error> {
        match self {
            Self::Config(_) => None,
            Self::Request(error) | Self::Run(error) => Some(error),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Config(_) | Self::Request(_) => 2,
            Self::Run(_) => 1,
        })
    }
}

/// Refuses a file to write that cannot be written, before the work whose result it is to hold. `key` names it.
pub(crate) fn check_output(key: &str, file: Option<&Path>) -> Result<(), Failure> {
    let checked = file.map_or(Ok(()), tt_disk::check_replace);
    checked
        .with_context(|| key.to_owned())
        .map_err(Failure::Request)
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Self {
        Self::Config(diagnostics)
    }
}

/// A configuration or a checkpoint that does not fit was a wrong request; anything else is a failed run.
impl From<tt_train::Error> for Failure {
    fn from(error: tt_train::Error) -> Self {
        use tt_train::Error;
        match error {
            Error::Config { .. }
            | Error::State(_)
            | Error::OtherOptimizer { .. }
            | Error::Weights(_)
            | Error::Variants(_)
            | Error::Data(DataError::CursorOutsideData { .. }) => Self::request(error),
            Error::Optimizer(error) if error.is_state() => Self::request(error),
            _ => Self::run(error),
        }
    }
}

impl From<tt_run::RecordError> for Failure {
    fn from(error: tt_run::RecordError) -> Self {
        match error {
            tt_run::RecordError::Config(diagnostics) => Self::Config(diagnostics),
            error @ tt_run::RecordError::Write(_) => Self::run(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Each diagnostic begins with `error:` already.
            Self::Config(diagnostics) => diagnostics.fmt(f),
            // The whole chain on one line: each cause adds what the one before it did not know.
            Self::Request(error) | Self::Run(error) => write!(f, "error: {error:#}"),
        }
    }
}
