//! How checkpoints are kept: the part of the configuration that belongs to this crate.

use std::num::{NonZeroU64, NonZeroUsize};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Keep this many of the newest checkpoints and remove older ones; `null` keeps all.
    pub keep_last: Option<NonZeroUsize>,

    /// Also keep every checkpoint whose step is a multiple of this.
    pub keep_every: Option<NonZeroU64>,

    /// Split the model's weights into files of at most this many bytes.
    pub max_shard_bytes: NonZeroU64,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            keep_last: NonZeroUsize::new(3),
            keep_every: None,
            max_shard_bytes: NonZeroU64::new(5_000_000_000).unwrap_or(NonZeroU64::MAX),
        }
    }
}
