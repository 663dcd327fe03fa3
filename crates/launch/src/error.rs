//! What can go wrong with child processes.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot find this program's own file")]
    UnknownProgram(#[source] io::Error),
    #[error("cannot find this program's own file: it was moved")]
    ProgramMoved,
    #[error("cannot start {program}, which works on the device")]
    Start { program: String, source: io::Error },
    #[error("cannot make a folder in {}", parent.display())]
    Session { parent: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot redirect what the device prints")]
    Redirect(#[source] io::Error),
    #[error("the process {supervisor} that supervised this one has ended")]
    Orphaned { supervisor: String },
    /// The worker did not end in order, and may not be started again: a report of several lines.
    #[error("{0}")]
    Crash(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
