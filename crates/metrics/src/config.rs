//! The configuration group `logging`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The group `logging`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// How progress is shown on standard output.
    pub progress: Progress,
    /// Whether a run ends with `report.html` and `plots/` in its folder.
    pub report: bool,
    /// Every how many steps the elements of each trained parameter and of its gradient are counted by size, for
    /// histograms: `histograms.jsonl`, W&B and TensorBoard have them. Such a step takes longer. Null or 0: never.
    pub histogram_interval: Option<u64>,
    /// What else gets the metrics, by a name of your choice: `{type, kwargs}` each. One called `console` takes the
    /// place of the progress on standard output.
    pub sinks: BTreeMap<String, SinkConfig>,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            progress: Progress::default(),
            report: true,
            histogram_interval: None,
            sinks: BTreeMap::new(),
        }
    }
}

/// Something that gets the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// The sink's name: `file.Type`.
    pub r#type: String,
    /// Options of the sink, by name.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// A bar on a terminal, lines otherwise.
    #[default]
    Auto,
    /// A line of `key=value` every `trainer.log_interval` steps.
    Lines,
    /// Messages only.
    None,
    /// The rows of `metrics.jsonl`, and messages on standard error; what `--json` sets.
    Json,
    /// Nothing but warnings and errors, on standard error; what `--quiet` sets.
    Quiet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_strict_and_has_defaults() {
        let parse = serde_json::from_str::<LoggingConfig>;
        assert_eq!(parse("{}").unwrap().progress, Progress::Auto);
        assert_eq!(
            parse(r#"{"progress": "lines"}"#).unwrap().progress,
            Progress::Lines
        );
        let error = parse(r#"{"progres": "lines"}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `progres`"), "{error}");
        let error = parse(r#"{"progress": "loud"}"#).unwrap_err().to_string();
        assert!(
            error.contains("expected one of `auto`, `lines`, `none`, `json`, `quiet`"),
            "{error}"
        );
    }

    #[test]
    fn every_field_is_documented_in_the_schema() {
        let schema = schemars::schema_for!(LoggingConfig);
        let fields = schema
            .get("properties")
            .and_then(|p| p.as_object())
            .unwrap();
        assert!(!fields.is_empty());
        for (name, field) in fields {
            assert!(field.get("description").is_some(), "{name}");
        }
    }
}
