//! Finds and opens checkpoints; never one that is incomplete or damaged.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    error::{Damage, Error, Problem, Result},
    layout,
    manifest::Manifest,
    retention,
    weights::Weights,
};

/// A checkpoint whose files were all found to be whole when it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    dir: PathBuf,
    step: u64,
}

/// What [`latest`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest {
    /// The newest that is whole, if there is one.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that cannot be used and why: for the user to read.
    pub skipped: Vec<Damage>,
}

/// The newest checkpoint in `dir` whose sizes and checksums are as its manifest says; none if
/// `dir` has none or does not exist. Reads the whole checkpoint once.
///
/// Errors: one that cannot be read ends the search, for it may well be whole.
pub fn latest(dir: &Path) -> Result<Latest> {
    let mut skipped = Vec::new();
    for (step, path) in retention::step_dirs(dir)?.into_iter().rev() {
        match verify(&path) {
            Ok(checkpoint) if checkpoint.step == step => {
                return Ok(Latest {
                    checkpoint: Some(checkpoint),
                    skipped,
                });
            }
            Ok(checkpoint) => skipped.push(Damage {
                problem: Problem::ManifestUnreadable(format!(
                    "it is of step {}, the folder's name says {step}",
                    checkpoint.step
                )),
                dir: path,
            }),
            Err(Error::Damaged(damage)) => skipped.push(damage),
            Err(error) => return Err(error),
        }
    }
    Ok(Latest {
        checkpoint: None,
        skipped,
    })
}

/// Whether a run keeps its checkpoints in `dir`: there are folders of their names in it, good or damaged.
pub fn holds_checkpoints(dir: &Path) -> Result<bool> {
    Ok(dir.is_dir() && !retention::step_dirs(dir)?.is_empty())
}

fn verify(dir: &Path) -> Result<Checkpoint> {
    Manifest::verify(dir).map(|manifest| Checkpoint {
        dir: dir.to_owned(),
        step: manifest.step,
    })
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `dir`, whatever its name, and verifies it in full.
    pub fn open(dir: &Path) -> Result<Self> {
        // So that a wrong path is not reported as a damaged checkpoint.
        fs::read_dir(dir).map_err(|e| Error::io("open checkpoint", dir, e))?;
        verify(dir)
    }

    /// Steps done when it was written.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The model's weights. Error: a file that cannot be read, or is no safetensors file.
    pub fn model(&self) -> Result<Weights> {
        Weights::open(&self.dir)
    }

    /// The optimizers' state, by parameter and slot. Error: as [`Checkpoint::model`].
    pub fn optimizer(&self) -> Result<Weights> {
        Weights::open(&self.dir.join(layout::OPTIMIZER))
    }

    /// The model's `config.json`.
    pub fn config(&self) -> Result<Value> {
        if self.dir.join(layout::CONFIG_OF_BASE).exists() {
            return self.json(layout::CONFIG_OF_BASE);
        }
        self.json(layout::CONFIG)
    }

    /// What the trainer saved besides tensors.
    pub fn state(&self) -> Result<Value> {
        self.json(layout::STATE)
    }

    fn json(&self, name: &str) -> Result<Value> {
        read_json(&self.dir.join(name))
    }
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|e| Error::io("read", path, e))?;
    serde_json::from_slice(&text).map_err(|e| Error::Malformed {
        path: path.to_owned(),
        what: "JSON",
        reason: e.to_string(),
    })
}
