//! `masked_lm.MaskedLMCollator`: text of which some tokens are hidden, to be named from those around them.
//!
//! A document is what begins one, its tokens and its end: `[CLS] ... [SEP]` of BERT. Packed, rows are filled to the last token
//! and documents do not see each other; else a row is one document, and one that is too long ends with the end all the same.
//! Which tokens are hidden is a function of the run's seed, the epoch and the row of the data (see [`crate::hide`]); of
//! validation, whose batches are made once, it is the same in every run.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, Words, typed_kwargs};

use crate::hide::{Hide, HideOptions, Place};
use crate::{Collator, Examples, Kept, Layout, Prediction, TokenizeCollator, TokenizeConfig};

const KWARGS: &str = "data.collator.kwargs";
const MASK_TOKEN: &str = "data.tokenizer.mask_token";

/// `data.collator.kwargs` of `masked_lm.MaskedLMCollator`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaskedLMConfig {
    /// The share of tokens that are hidden.
    #[schemars(range(min = 0.001, max = 1.0))]
    pub mlm_probability: f64,
    /// Of the hidden tokens, the share in whose place the mask token stands.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mask_replace_prob: f64,
    /// Of the hidden tokens, the share in whose place any other token stands. What is left of them stays as it is.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub random_replace_prob: f64,
    /// Whether all tokens of a word are hidden together.
    pub whole_word_mask: bool,
    /// The longest span that is hidden together: of words with `whole_word_mask`, else of tokens. A span of n comes with
    /// weight 1 / n.
    #[schemars(range(min = 1, max = 32))]
    pub max_ngrams: usize,
    /// Whether documents are packed: rows are filled to the last token, a document going on in the next row where it does
    /// not fit. Otherwise a row is one document, cut off or padded.
    pub packing: bool,
    /// The column that holds the text.
    pub text_field: String,
}

impl Default for MaskedLMConfig {
    fn default() -> Self {
        let TokenizeConfig {
            packing,
            text_field,
        } = TokenizeConfig::default();
        Self {
            mlm_probability: 0.15,
            mask_replace_prob: 0.8,
            random_replace_prob: 0.1,
            whole_word_mask: false,
            max_ngrams: 1,
            packing,
            text_field,
        }
    }
}

impl MaskedLMConfig {
    fn check(&self) -> Result<(), DataError> {
        let bad = |message: String| {
            Err(DataError::BadValue {
                key: KWARGS,
                message,
            })
        };
        let Self {
            mlm_probability: p,
            mask_replace_prob: mask,
            random_replace_prob: random,
            max_ngrams,
            ..
        } = *self;
        if !(p > 0.0 && p <= 1.0) {
            return bad(format!("mlm_probability: {p} is not in (0, 1]"));
        }
        let shares = 0.0..=1.0;
        if !shares.contains(&mask) || !shares.contains(&random) || mask + random > 1.0 + 1e-9 {
            return bad(format!(
                "mask_replace_prob {mask} and random_replace_prob {random} are no shares of the hidden tokens: together they are \
                 at most 1"
            ));
        }
        if !(1..=32).contains(&max_ngrams) {
            return bad(format!("max_ngrams: {max_ngrams} is not in 1 to 32"));
        }
        Ok(())
    }
}

/// Hides tokens.
pub struct MaskedLMCollator {
    text: TokenizeCollator,
    tokenizer: Arc<Tokenizer>,
    hide: Hide,
    is_packed: bool,
}

impl MaskedLMCollator {
    /// Errors: shares that are none; a tokenizer without a token that hides others.
    pub fn new(config: MaskedLMConfig, tokenizer: Arc<Tokenizer>) -> Result<Self, DataError> {
        config.check()?;
        let Some(mask_id) = tokenizer.mask_id() else {
            return Err(DataError::BadValue {
                key: MASK_TOKEN,
                message: format!(
                    "the tokenizer {} has no token that hides others: none is called [MASK] or <mask>, and its \
                     tokenizer_config.json names none; name one that no text has, +{MASK_TOKEN}='<|fim_pad|>' for one, or take \
                     a tokenizer that has one",
                    tokenizer.path().display()
                ),
            });
        };
        let options = HideOptions {
            mlm_probability: config.mlm_probability,
            mask_replace_prob: config.mask_replace_prob,
            random_replace_prob: config.random_replace_prob,
            whole_words: config.whole_word_mask,
            max_ngrams: config.max_ngrams,
        };
        let text = TokenizeConfig {
            packing: config.packing,
            text_field: config.text_field,
        };
        Ok(Self {
            text: TokenizeCollator::new(text, Arc::clone(&tokenizer)),
            hide: Hide::new(&options, Words::of(&tokenizer), mask_id),
            is_packed: config.packing,
            tokenizer,
        })
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs(KWARGS, kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))?))
    }
}

impl Collator for MaskedLMCollator {
    fn layout(&self) -> Layout {
        self.text.layout()
    }

    fn prediction(&self) -> Prediction {
        Prediction::SameToken
    }

    fn columns(&self) -> Option<Vec<String>> {
        self.text.columns()
    }

    fn hides_tokens(&self) -> bool {
        true
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        self.text.encode(row, examples)
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        self.text.encode_part(row, from, examples)
    }

    fn finish(&self, examples: &mut Examples) -> Result<(), DataError> {
        let (seed, most) = (examples.seed(), examples.sequence_length());
        let mut first = examples.tokens_before();
        let mut place = Place::from_bits(examples.carried());
        for example in examples.iter_mut() {
            if !self.is_packed && example.input_ids.len() > most {
                example.input_ids.truncate(most);
                example.labels.truncate(most);
                // As `transformers` cuts: what ends a text stays.
                if let Some(last) = example.input_ids.last_mut() {
                    *last = self.tokenizer.eos_id();
                }
            }
            let (ids, labels) = (&mut example.input_ids, &mut example.labels);
            self.hide.hide((seed, first), &mut place, ids, labels);
            first += example.input_ids.len() as u64;
        }
        examples.carry(place.to_bits());
        Ok(())
    }

    /// Those that are hidden are drawn after, anew in each epoch.
    fn keeps(&self) -> Option<Kept> {
        self.text.keeps()
    }
}
