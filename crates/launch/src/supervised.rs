//! What a supervisor must be told of the command that its worker runs, and of the run that comes of it.

use std::path::{Path, PathBuf};
use std::process::Command;

pub trait Supervised {
    /// The process to start: the command as it was given, or going on with the run in this folder.
    fn command(&self, resume: Option<&Path>) -> Command;

    /// How many ranks the process starts, if it is the launcher of several; 1: it is the worker itself.
    fn num_ranks(&self) -> usize;

    /// The newest whole checkpoint of the run in this folder: its step and its folder.
    fn newest_checkpoint(&self, run: &Path) -> Option<(u64, PathBuf)>;

    /// What a user types to go on with the run in this folder.
    fn command_line(&self, run: &Path) -> String;
}
