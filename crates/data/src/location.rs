//! Where a row stands, for messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a row stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Location {
    /// Nobody has said.
    #[default]
    Unknown,
    /// A file and the line where the row begins, counted from 1.
    Line {
        /// The file.
        file: Arc<Path>,
        /// Counted from 1.
        line: u64,
    },
    /// A file and the row in it.
    Row {
        /// The file.
        file: Arc<Path>,
        /// Counted from 0, as tools for such files do.
        row: u64,
    },
    /// A row made by a generator.
    Generated {
        /// The generator.
        source: &'static str,
        /// Which of its rows.
        index: u64,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("a row"),
            Self::Line { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Row { file, row } => write!(f, "{}, row {row}", file.display()),
            Self::Generated { source, index } => write!(f, "{source}, row {index}"),
        }
    }
}
