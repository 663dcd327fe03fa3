//! A run's folder, and who owns it: its lock, what a run there is to do, what it records, how it ends.
//!
//! Deciding and doing are apart. [`decide()`] looks at what is on disk, changes nothing, and gives a value that says which
//! folder, which checkpoint, how long, and what the user is told; it can be written down and sent to other processes.
//! [`decide_and_hold`] also locks the folder of a run that goes on, and [`HeldFolder::enter`] carries it out, in one process.
//!
//! ```
//! use tt_run::{Decision, OutputDir, Resume, RunRequest, decide_and_hold};
//!
//! # let tmp = tempfile::tempdir()?;
//! # let folder = tmp.path().join("run").display().to_string();
//! let config = serde_json::json!({"lr": 0.1});
//! let request = RunRequest {
//!     output_dir: OutputDir::new(&folder, &folder),
//!     config: &config,
//!     resume: Resume::Auto,
//!     max_steps: Some(100),
//! };
//! let (Decision::Start(start), held) = decide_and_hold(&request)? else { unreachable!() };
//! assert!(start.checkpoint.is_none());
//! let entered = held.enter(&start.folder)?;
//! entered.run_dir.write("notes.txt", "begun\n")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod decide;
mod decision;
pub mod ending;
mod origins;
mod output_dir;
pub mod program;
pub mod quote;
mod record;
pub mod run_dir;
mod same_run;
mod segments;

pub use decide::{ResumeError, decide, decide_and_hold};
pub use decision::{Decision, Entered, FolderChoice, HeldFolder, Resume, RunRequest, Start};
pub use output_dir::OutputDir;
pub use record::{RecordError, RecordedRun, record};
pub use run_dir::{RunDir, RunDirError};
pub use same_run::{Difference, same_run};
pub use segments::{RecordedSegment, Segment, segments};
