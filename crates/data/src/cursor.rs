//! The data position of a training run.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where one rank's data goes on: the next row of an epoch, and how many of that row's tokens are
/// used already.
///
/// A packed batch may end within a document; `token` is what is in flight then, so restoring reads
/// one row again and nothing else, wherever the cursor points.
/// It belongs to the data, seed, shard, tokenizer and collator that it was made with.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Rows of this epoch that are complete, in this rank's order.
    pub row: u64,
    /// Tokens of the next row that are in earlier batches.
    pub token: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, row, token } = self;
        write!(f, "epoch {epoch}, row {row}, token {token}")
    }
}
