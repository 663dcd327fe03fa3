//! `simple.SimpleCollator`: rows that are tokenised already, with their labels if they have any.
//!
//! Labels are those of Hugging Face: one for each token, not shifted, -100 where the loss is not to look. Without the column
//! every token is one to predict. Tokens that the attention mask leaves out are padding, and dropped.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, typed_kwargs};

use crate::tokens::{bad, ids};
use crate::{Collator, Examples, Layout};

/// `data.collator.kwargs` of `simple.SimpleCollator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimpleConfig {
    /// Whether rows are filled to the last token, one example after another. Otherwise a row is one example, cut off or padded.
    pub packing: bool,
    /// The column of token ids.
    pub input_ids_field: String,
    /// The column of labels, if there is one.
    pub labels_field: String,
    /// The column that has 0 for padding, if there is one.
    pub attention_mask_field: String,
}

impl Default for SimpleConfig {
    fn default() -> Self {
        Self {
            packing: false,
            input_ids_field: "input_ids".to_owned(),
            labels_field: "labels".to_owned(),
            attention_mask_field: "attention_mask".to_owned(),
        }
    }
}

/// Passes tokens through.
pub struct SimpleCollator {
    config: SimpleConfig,
}

impl SimpleCollator {
    /// Makes one.
    pub fn new(config: SimpleConfig) -> Self {
        Self { config }
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        _: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config)))
    }
}

impl Collator for SimpleCollator {
    fn layout(&self) -> Layout {
        Layout::of(self.config.packing)
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(vec![
            self.config.input_ids_field.clone(),
            self.config.labels_field.clone(),
            self.config.attention_mask_field.clone(),
        ])
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let SimpleConfig {
            input_ids_field,
            labels_field,
            attention_mask_field,
            ..
        } = &self.config;
        let ids = ids(row, input_ids_field)?;
        let optional = |field: &str| -> Result<Option<&[i64]>, DataError> {
            if row.fields.get(field).is_none() {
                return Ok(None);
            }
            let values = row.ints(field)?;
            if values.len() == ids.len() {
                return Ok(Some(values));
            }
            Err(bad(
                row,
                format!(
                    "{} values in `{field}` for {} in `{input_ids_field}`",
                    values.len(),
                    ids.len()
                ),
            ))
        };
        let labels = optional(labels_field)?;
        let mask = optional(attention_mask_field)?;
        let example = examples.add();
        for (i, id) in ids.into_iter().enumerate() {
            if mask.is_none_or(|mask| mask[i] != 0) {
                example.input_ids.push(id);
                example
                    .labels
                    .push(labels.map_or(i64::from(id), |labels| labels[i]));
            }
        }
        Ok(())
    }
}
