//! `single_sequence.SingleSequenceCollator`: one column of token ids, a row of the batch each, all of them to predict.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, typed_kwargs};

use crate::tokens::ids;
use crate::{Collator, Examples, Layout};

/// `data.collator.kwargs` of `single_sequence.SingleSequenceCollator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SingleSequenceConfig {
    /// The column of token ids.
    pub input_ids_field: String,
}

impl Default for SingleSequenceConfig {
    fn default() -> Self {
        Self {
            input_ids_field: "input_ids".to_owned(),
        }
    }
}

/// Passes a sequence through, cut off or padded.
pub struct SingleSequenceCollator {
    config: SingleSequenceConfig,
}

impl SingleSequenceCollator {
    /// Makes one.
    pub fn new(config: SingleSequenceConfig) -> Self {
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

impl Collator for SingleSequenceCollator {
    fn layout(&self) -> Layout {
        Layout::Padded
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(vec![self.config.input_ids_field.clone()])
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let ids = ids(row, &self.config.input_ids_field)?;
        let example = examples.add();
        example.input_ids.extend(ids);
        example.label_all();
        Ok(())
    }
}
