//! What a run is asked to do and what has been decided, as values; and carrying it out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tt_checkpoint::Checkpoint;

use crate::output_dir::OutputDir;
use crate::run_dir::{RunDir, RunDirError};

/// The root key `resume`.
#[derive(Clone, Debug, PartialEq)]
pub enum Resume {
    Auto,
    Never,
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "none" => Self::Never,
            path => Self::From(path.into()),
        }
    }
}

/// All that a decision depends on, besides what is on disk.
#[derive(Debug)]
pub struct RunRequest<'a> {
    pub output_dir: OutputDir<'a>,
    /// The whole config, resolved.
    pub config: &'a Value,
    pub resume: Resume,
    /// The step to end at; `None`: where the data does.
    pub max_steps: Option<u64>,
}

/// What there is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    Start(Start),
    /// The run in this folder is the one asked for, and has finished.
    Finished(PathBuf),
}

/// Where a run works, from which state, and how far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub folder: FolderChoice,
    pub checkpoint: Option<Checkpoint>,
    /// The `resume=PATH` that the run began from, now or when it was first started.
    pub origin: Option<PathBuf>,
    /// As in [`RunRequest`].
    pub max_steps: Option<u64>,
    /// What was decided and why, for the user to read.
    pub messages: Vec<String>,
}

impl Start {
    /// The last step that has been made already.
    pub fn first_step(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, Checkpoint::step)
    }
}

/// The folder that a run is to work in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FolderChoice {
    /// An earlier run's, which goes on.
    Earlier(PathBuf),
    /// A new one under this name, or with a number if it is taken.
    New(PathBuf),
    /// The one of this name; an earlier run there is moved aside.
    Given(PathBuf),
}

impl FolderChoice {
    pub fn path(&self) -> &Path {
        match self {
            Self::Earlier(path) | Self::New(path) | Self::Given(path) => path,
        }
    }
}

/// The lock of an earlier run's folder, or none if the run gets another.
///
/// A new folder is made when it is entered and not before, so that a request refused until then changes nothing on disk.
#[derive(Debug)]
pub struct HeldFolder(Option<RunDir>);

/// A folder to work in.
#[derive(Debug)]
pub struct Entered {
    pub run_dir: RunDir,
    /// The name that an earlier run there now has.
    pub moved_aside: Option<PathBuf>,
}

impl HeldFolder {
    pub(crate) fn new(held: Option<RunDir>) -> Self {
        Self(held)
    }

    /// Makes and locks the folder that was chosen.
    pub fn enter(self, choice: &FolderChoice) -> Result<Entered, RunDirError> {
        let run_dir = match (self.0, choice) {
            (Some(held), _) => held,
            (None, FolderChoice::New(path)) => RunDir::create_new(path)?,
            (None, FolderChoice::Earlier(path) | FolderChoice::Given(path)) => RunDir::open(path)?,
        };
        if matches!(choice, FolderChoice::Given(_)) && run_dir.is_used() {
            let (run_dir, aside) = run_dir.set_aside()?;
            return Ok(Entered {
                run_dir,
                moved_aside: Some(aside),
            });
        }
        Ok(Entered {
            run_dir,
            moved_aside: None,
        })
    }
}
