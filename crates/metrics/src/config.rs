//! The configuration group `logging`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// How progress is shown on standard output.
    pub progress: Progress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// A bar on a terminal, lines otherwise.
    #[default]
    Auto,
    /// A progress bar that is redrawn in place.
    Bar,
    /// A line every `trainer.log_interval` steps.
    Lines,
    /// Messages only.
    None,
}
