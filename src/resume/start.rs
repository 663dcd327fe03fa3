//! What has been decided: the folder a run works in, and the state it starts from.

use std::path::{Path, PathBuf};

use tt_checkpoint::Checkpoint;

use crate::run_dir::{self, RunDir, RunDirError};

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Decision {
    Start(Start),
    /// The folder named holds this very run, and it has finished.
    Finished(PathBuf),
}

/// The folder that a run is to work in.
///
/// A new one is made when it is taken and not before, so that a request refused until then changes nothing on disk.
#[derive(Debug)]
pub(crate) enum Folder {
    /// An earlier run's, which goes on.
    Held(RunDir),
    /// A new one under this name, or with a number if it is taken.
    New(PathBuf),
    /// The one of this name; an earlier run there is moved aside.
    Given(PathBuf),
}

impl Folder {
    /// Makes and locks the folder. Gives also the name that an earlier run there now has.
    pub(crate) fn take(self) -> Result<(RunDir, Option<PathBuf>), RunDirError> {
        let run_dir = match self {
            Self::Held(run_dir) => return Ok((run_dir, None)),
            Self::New(path) => return Ok((RunDir::create_new(&path)?, None)),
            Self::Given(path) => RunDir::open(&path)?,
        };
        if !run_dir.is_used() {
            return Ok((run_dir, None));
        }
        let (run_dir, aside) = run_dir.set_aside()?;
        Ok((run_dir, Some(aside)))
    }
}

/// Where a run works, and from which state.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) folder: Folder,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// The `resume=PATH` that the run began from, now or when it was first started.
    pub(crate) origin: Option<PathBuf>,
    /// What was decided and why, for the user to read.
    pub(crate) notes: Vec<String>,
}

impl Start {
    /// The folder of a run that has finished and is asked for no step more.
    pub(crate) fn finished(&self, max_steps: Option<u64>) -> Option<&Path> {
        let Folder::Held(run_dir) = &self.folder else {
            return None;
        };
        let step = self.checkpoint.as_ref()?.step();
        (run_dir::is_finished(run_dir.path()) && step >= max_steps?).then(|| run_dir.path())
    }
}
