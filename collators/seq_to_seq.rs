//! `seq_to_seq.SeqToSeqCollator`: an input and the output to it, in one sequence of a decoder; the loss looks at the output.
//!
//! Each is a column of text or of token ids. Text is tokenised, with what begins a document before the input and the end of
//! text after the output, neither of them twice where the text brings it; ids are taken as they are.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, Value as Column, typed_kwargs};

use crate::tokens::ids;
use crate::{Collator, Examples, Layout};

/// `data.collator.kwargs` of `seq_to_seq.SeqToSeqCollator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SeqToSeqConfig {
    /// The column of the input: text or token ids.
    pub input_field: String,
    /// The column of the output: text or token ids.
    pub output_field: String,
    /// Tokens of the input, of which those beyond are cut off; all of them if null.
    pub input_length: Option<usize>,
    /// Tokens of the output, of which those beyond are cut off; all of them if null.
    pub output_length: Option<usize>,
    /// Whether rows hold one example after another. Otherwise a row is one example, cut off or padded.
    pub packing: bool,
}

impl Default for SeqToSeqConfig {
    fn default() -> Self {
        Self {
            input_field: "input_ids".to_owned(),
            output_field: "output_ids".to_owned(),
            input_length: None,
            output_length: None,
            packing: false,
        }
    }
}

/// Puts an output after its input.
pub struct SeqToSeqCollator {
    config: SeqToSeqConfig,
    tokenizer: Arc<Tokenizer>,
}

impl SeqToSeqCollator {
    /// Makes one.
    pub fn new(config: SeqToSeqConfig, tokenizer: Arc<Tokenizer>) -> Self {
        Self { config, tokenizer }
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))))
    }

    /// The tokens in a column: of a text those that `encode` makes of it.
    fn tokens(
        &self,
        row: &Row,
        field: &str,
        encode: impl Fn(&str) -> Result<Vec<u32>, DataError>,
    ) -> Result<Vec<u32>, DataError> {
        match row.get(field)? {
            Column::Ints(_) => ids(row, field),
            Column::Text(text) => encode(text),
            other => Err(row.wrong(field, "a string or a list of token ids", other)),
        }
    }
}

impl Collator for SeqToSeqCollator {
    fn layout(&self) -> Layout {
        Layout::of(self.config.packing)
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(vec![
            self.config.input_field.clone(),
            self.config.output_field.clone(),
        ])
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let config = &self.config;
        let mut input = self.tokens(row, &config.input_field, |text| {
            self.tokenizer.encode_prompt(text)
        })?;
        let mut output = self.tokens(row, &config.output_field, |text| {
            let mut tokens = Vec::new();
            self.tokenizer.encode_to_end(text, &mut tokens)?;
            Ok(tokens)
        })?;
        let all = input.len() + output.len();
        input.truncate(config.input_length.unwrap_or(usize::MAX));
        output.truncate(config.output_length.unwrap_or(usize::MAX));
        // What is to be learned stays, the beginning of a long input does not fit beside it.
        let room = examples
            .sequence_length()
            .saturating_sub(output.len())
            .max(1);
        input.drain(..input.len().saturating_sub(room));
        output.truncate(examples.sequence_length().saturating_sub(input.len()));
        examples.cut(all - input.len() - output.len());
        let example = examples.add();
        example.input_ids.extend(input);
        example.label_none();
        example.input_ids.extend(output);
        example.label_all();
        Ok(())
    }
}
