//! `summary.json`: how the run ended, in a few numbers.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{error::Result, record::Scalars};

/// What `summary.json` says of a run that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Nats per token on the validation split.
    pub final_val_loss: Option<f32>,
    /// What the unigram distribution of the training data gets on the same split.
    pub unigram_nats: Option<f64>,
    /// Optimizer steps of the whole run, and the tokens in them.
    pub steps: Option<u64>,
    /// Tokens seen since the run began.
    pub tokens: Option<u64>,
    /// Of the last step.
    pub train_loss: Option<f32>,
    /// From the last start of the run to its end, validation and checkpoints included.
    pub wall_time_seconds: Option<f64>,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Over the whole run, validation and checkpoints left out.
    pub tokens_per_second: Option<f64>,
    /// The most memory that the process has held.
    pub peak_rss_bytes: Option<u64>,
    /// What the trainer has reported besides.
    #[serde(flatten)]
    pub scalars: Scalars,
}

impl Summary {
    /// Replaces the file at `path`, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(tt_disk::write_json(path, self)?)
    }
}
