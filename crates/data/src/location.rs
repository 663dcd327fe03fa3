//! Where a row stands, for messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a row stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Location {
    #[default]
    Unknown,
    /// A file and the line where the row begins, counted from 1.
    Line { file: Arc<Path>, line: u64 },
    /// A file and the row in it, counted from 0, as tools for such files do.
    Row { file: Arc<Path>, row: u64 },
    /// A row made by a generator.
    Generated { source: &'static str, index: u64 },
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
