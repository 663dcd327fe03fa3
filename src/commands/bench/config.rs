//! The config group `bench`: how long is measured, and of how much.

use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BenchConfig {
    /// Steps, batches or texts that are made first and left out: they make buffers that later ones find.
    pub(crate) warmup: u64,
    /// How many are measured at most, of which the median is told; null: as many as `seconds` has room
    /// for, and at least three.
    #[schemars(range(min = 1))]
    pub(crate) steps: Option<u64>,
    /// After this time no other is begun.
    #[schemars(range(min = 0.0))]
    pub(crate) seconds: f64,
    /// Of `generate`: tokens of the prompt.
    #[schemars(range(min = 1))]
    pub(crate) prompt_tokens: usize,
    /// Of `generate`: tokens that follow it.
    #[schemars(range(min = 2))]
    pub(crate) new_tokens: usize,
}

impl Default for BenchConfig {
    fn default() -> Self {
        Self {
            warmup: 2,
            steps: None,
            seconds: 10.0,
            prompt_tokens: 128,
            new_tokens: 64,
        }
    }
}
