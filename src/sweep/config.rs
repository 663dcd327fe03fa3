//! The config group `sweep`: what `--multirun` does besides expanding and running jobs.

use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SweepConfig {
    /// What a failed job means for the others.
    pub(crate) on_failure: OnFailure,
    /// What jobs are compared by: a key of `summary.json`, or else of the last row of `metrics.jsonl` that has it. null:
    /// `final_val_objective` if there are jobs with an objective of their own, as preferences have, else `final_val_loss`.
    pub(crate) metric: Option<String>,
    /// Whether less of the metric is better.
    pub(crate) minimize: bool,
}

impl Default for SweepConfig {
    fn default() -> Self {
        Self {
            on_failure: OnFailure::Continue,
            metric: None,
            minimize: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    /// The others go on.
    Continue,
    /// The others save and stop; the same command goes on with them.
    Stop,
}
