//! Child processes: workers that a device may take with it, jobs of a sweep, and what asks a process to stop.
//!
//! Programs and arguments come in as values; what a run is, and how it goes on, is known to who starts it. All children
//! are started in [`child`], where it is said how each is tied to its parent, and [`begin`] is the other end of the tie.
//!
//! ```
//! use std::process::Command;
//! use tt_launch::child::Pool;
//!
//! tt_launch::begin()?;
//! let mut jobs = Pool::new(2);
//! let mut waiting = vec!["exit 0", "exit 3"];
//! let mut codes = Vec::new();
//! while codes.len() < 2 {
//!     while jobs.has_room() && let Some(script) = waiting.pop() {
//!         jobs.start(script, Command::new("sh").args(["-c", script]))?;
//!     }
//!     codes.extend(jobs.take_ended()?.into_iter().map(|(_, exit)| exit.code()));
//! }
//! codes.sort();
//! assert_eq!(codes, [Some(0), Some(3)]);
//! # Ok::<(), tt_launch::Error>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod child;
mod crash_report;
mod error;
mod parent_pipe;
mod session;
mod stop_signal;
mod supervised;
pub mod supervisor;
mod watchdog;
pub mod worker;

use std::path::PathBuf;

pub use error::{Error, Result};
pub use stop_signal::{EXIT_INTERRUPTED, EXIT_PREEMPTED, StopSignal};
pub use supervised::Supervised;

/// To be called first. In a process that this crate has started: ends it with its parent. In any other, nothing.
pub fn begin() -> Result<()> {
    worker::begin()?;
    Ok(parent_pipe::watch()?)
}

/// The program that runs, to be started again.
pub fn this_program() -> Result<PathBuf> {
    let path = std::env::current_exe().map_err(Error::UnknownProgram)?;
    if path.exists() {
        Ok(path)
    } else {
        Err(Error::ProgramMoved)
    }
}
