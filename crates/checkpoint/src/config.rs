//! How checkpoints are kept: the part of the configuration that belongs to this crate.

use std::num::{NonZeroU64, NonZeroUsize};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which checkpoints are kept, and where they are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Keep this many of the newest checkpoints and remove older ones; `null` keeps all.
    pub keep_last: Option<NonZeroUsize>,

    /// Also keep every checkpoint whose step is a multiple of this.
    pub keep_every: Option<NonZeroU64>,

    /// Split the model's weights into files of at most this many bytes.
    pub max_shard_bytes: NonZeroU64,

    /// Send each checkpoint to this repository of the Hugging Face Hub, `user/name` or `user/name@branch`, in the
    /// background; `null` sends none. See docs/hub.md.
    pub hub: Option<String>,

    /// Whether that repository, if it has to be made, is seen by its owner alone.
    pub hub_private: bool,

    /// How long the end of a run waits at most for its last checkpoint to be sent.
    pub hub_wait_seconds: u64,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            keep_last: NonZeroUsize::new(3),
            keep_every: None,
            max_shard_bytes: NonZeroU64::new(5_000_000_000).unwrap_or(NonZeroU64::MAX),
            hub: None,
            hub_private: true,
            hub_wait_seconds: 1800,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_strict_and_has_defaults() {
        let parse = serde_json::from_str::<CheckpointConfig>;
        assert_eq!(parse("{}").unwrap(), CheckpointConfig::default());
        assert_eq!(parse(r#"{"keep_last": null}"#).unwrap().keep_last, None);
        let error = parse(r#"{"keep_lasts": 3}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `keep_lasts`"), "{error}");
        // Keeping none, or every 0th, has no meaning.
        for text in [
            r#"{"keep_last": 0}"#,
            r#"{"keep_every": 0}"#,
            r#"{"max_shard_bytes": 0}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_field_is_documented_in_the_schema() {
        let schema = schemars::schema_for!(CheckpointConfig);
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
