//! `packing.PackingCollator`: documents packed into rows, whole where they fit, or one after another.
//!
//! A document is a column of text, to which the end of text is added, or of token ids, which are taken as they are.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, Value as Column, typed_kwargs};

use crate::tokens::ids;
use crate::{Collator, Examples, Kept, Layout, TokenizeCollator, TokenizeConfig};

/// `data.collator.kwargs` of `packing.PackingCollator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PackingConfig {
    /// How documents are packed.
    pub method: Packing,
    /// Rows of data that are packed together by `first_fit_decreasing`: the more, the less padding, and the more is held in
    /// memory.
    #[schemars(range(min = 1, max = 100_000))]
    pub window: usize,
    /// The column of text, or of token ids.
    pub field: String,
}

impl Default for PackingConfig {
    fn default() -> Self {
        Self {
            method: Packing::FirstFitDecreasing,
            window: WINDOW,
            field: "text".to_owned(),
        }
    }
}

/// Rows of data that are packed together: with as many there is little padding left to save.
pub(crate) const WINDOW: usize = 256;

/// How documents are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Whole, the longest first, each into the first row that has room for it. What is longer than a row is cut into pieces of
    /// its length.
    FirstFitDecreasing,
    /// One after another without padding; what does not fit goes on in the next row.
    Concat,
}

/// Packs documents.
pub struct PackingCollator {
    config: PackingConfig,
    text: TokenizeCollator,
}

impl PackingCollator {
    /// Makes one.
    pub fn new(config: PackingConfig, tokenizer: Arc<Tokenizer>) -> Self {
        let text = TokenizeConfig {
            packing: true,
            text_field: config.field.clone(),
        };
        Self {
            config,
            text: TokenizeCollator::new(text, tokenizer),
        }
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))))
    }
}

impl Collator for PackingCollator {
    fn layout(&self) -> Layout {
        match self.config.method {
            Packing::FirstFitDecreasing => Layout::Fitted(self.config.window),
            Packing::Concat => Layout::Packed,
        }
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(vec![self.config.field.clone()])
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        if let Column::Ints(_) = row.get(&self.config.field)? {
            let example = examples.add();
            example.input_ids.extend(ids(row, &self.config.field)?);
            example.label_all();
        } else {
            self.text.encode(row, examples)?;
        }
        if self.config.method == Packing::FirstFitDecreasing {
            examples.split_last();
        }
        Ok(())
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let is_text = !matches!(row.get(&self.config.field)?, Column::Ints(_));
        if is_text && self.config.method == Packing::Concat {
            return self.text.encode_part(row, from, examples);
        }
        self.encode(row, examples)?;
        Ok(None)
    }

    fn keeps(&self) -> Option<Kept> {
        self.text.keeps()
    }
}
