//! Where checkpoints go besides the run folder.

use std::path::PathBuf;

use tt_checkpoint::Hold;

/// Is given each checkpoint as soon as it is complete, and the one that a run goes on from. Both calls are made between
/// two steps, so they return at once.
pub trait Mirror: Send {
    /// Takes on a checkpoint, whose folder stays as it is until `hold` is dropped.
    fn take(&mut self, step: u64, folder: PathBuf, hold: Hold);

    /// What there is to tell the user since it was last asked.
    fn messages(&mut self) -> Vec<String>;
}
