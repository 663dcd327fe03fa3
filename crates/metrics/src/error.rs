//! What can go wrong in writing the record of a run.

use std::{io, path::PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Completes "cannot ...": "write", "rename".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// The file cannot be read, or is not what it should be.
    #[error("{}", path.display())]
    Read { path: PathBuf, source: io::Error },

    /// Written, it would make two fields of one name in a row.
    #[error("the scalar `{0}` has the name of a field that every row has")]
    ReservedKey(String),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// An error and what caused it, on one line.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
