//! The rows of `samples.jsonl`: what the model wrote on the way.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A prompt and what the model made of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// After which step.
    pub step: u64,
    /// What was given.
    pub prompt: String,
    /// What the model made of it.
    pub continuation: String,
}

impl Sample {
    /// Those that a run has recorded; none if it has no such file. A line that is half written is left out.
    pub fn read_all(path: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let rows = text.lines().map(serde_json::from_str);
        rows.filter_map(Result::ok).collect()
    }
}
