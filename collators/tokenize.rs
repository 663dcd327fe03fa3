//! `tokenize.TokenizeCollator`: text to tokens, each document with the end of text after it, and before it what the
//! tokenizer begins a text with, neither of them twice where the text brings it. Long documents are encoded in parts.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, typed_kwargs};

use crate::inner::encode_parts;
use crate::{Collator, Examples, Kept, KeptTokens, Layout};

/// Text that is encoded at a time.
const BYTES_PER_PART: usize = 1 << 16;

/// `data.collator.kwargs` of `tokenize.TokenizeCollator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizeConfig {
    /// Whether documents are packed: rows are filled to the last token, a document going on in the
    /// next row where it does not fit. Otherwise a row is one document, cut off or padded.
    pub packing: bool,
    /// The column that holds the text.
    pub text_field: String,
}

impl Default for TokenizeConfig {
    fn default() -> Self {
        Self {
            packing: true,
            text_field: "text".to_owned(),
        }
    }
}

/// Turns a column of text into tokens to predict.
pub struct TokenizeCollator {
    config: TokenizeConfig,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizeCollator {
    /// A collator for a tokenizer's tokens.
    pub fn new(config: TokenizeConfig, tokenizer: Arc<Tokenizer>) -> Self {
        Self { config, tokenizer }
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))))
    }
}

impl Collator for TokenizeCollator {
    fn layout(&self) -> Layout {
        Layout::of(self.config.packing)
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(vec![self.config.text_field.clone()])
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        encode_parts(self, row, examples)
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let text = row
            .text(&self.config.text_field)?
            .get(from..)
            .unwrap_or_default();
        let cut = self.tokenizer.cut(text, BYTES_PER_PART)?;
        let example = examples.last_or_add();
        let ids = &mut example.input_ids;
        let before = ids.len();
        match cut {
            Some((end, _)) => self.tokenizer.encode_into(&text[..end], ids)?,
            None => self.tokenizer.encode_to_end(text, ids)?,
        }
        if from == 0 {
            let start = self.tokenizer.start_before(&ids[before..]);
            ids.splice(before..before, start.iter().copied());
        }
        example.label_all();
        Ok(cut.map(|(_, next)| from + next))
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept {
            how: format!("{:?} with start and end, once", self.config.text_field),
            what: KeptTokens::All,
        })
    }
}
