//! Collators: what turns rows of a data set into rows of a batch. One file each.
//!
//! ```
//! use tt_collators::{Pipeline, PipelineOptions};
//! use tt_data::DataConfig;
//!
//! let data = Pipeline::open(&DataConfig::default(), &PipelineOptions::default())?;
//! let mut batches = data.train(None)?;
//! let first = batches.next_batch()?.expect("stories have no end");
//! let second = batches.next_batch()?.expect("stories have no end");
//!
//! // A run that stopped after the first batch goes on with the second.
//! let mut resumed = data.train(Some(first.cursor))?;
//! assert_eq!(resumed.next_batch()?, Some(second));
//! # Ok::<(), tt_data::DataError>(())
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod baselines;
mod batch;
mod chat;
mod example;
mod field;
mod fit;
mod hide;
mod inner;
mod layout;
mod loader;
mod masked_lm;
mod packing;
mod pipeline;
mod preference;
mod row_values;
mod seq_to_seq;
mod simple;
mod single_sequence;
mod skip_nulls;
mod spec;
mod start;
mod text_targets;
mod token_cache;
mod tokenize;
mod tokens;

use std::sync::Arc;

use serde_json::{Map, Value};
use tt_config::{Entry, Table};
use tt_data::{DataError, Row, Tokenizer};

pub use baselines::Baselines;
pub use batch::Batch;
pub use chat::{
    Answer, ChatCollator, ChatConfig, Columns, Conversation, OnBadRecord, OnNoTarget, OnTooLong,
    RecordFormat, Rendered, Tags, TrainOn,
};
pub use example::{Example, Examples, LeftOut};
pub use field::{Element, Field, IGNORE, Padding, Per, Slice, Values, WEIGHTS};
pub use layout::{Layout, Prediction};
pub use loader::{BatchShape, Loader};
pub use masked_lm::{MaskedLMCollator, MaskedLMConfig};
pub use packing::{Packing, PackingCollator, PackingConfig};
pub use pipeline::{Pipeline, PipelineOptions, Split};
pub use preference::{PreferenceCollator, PreferenceColumns, PreferenceConfig};
pub use row_values::{RowKey, RowValues};
pub use seq_to_seq::{SeqToSeqCollator, SeqToSeqConfig};
pub use simple::{SimpleCollator, SimpleConfig};
pub use single_sequence::{SingleSequenceCollator, SingleSequenceConfig};
pub use spec::BatchSpec;
pub use text_targets::TextTargets;
pub use token_cache::{TokenProgress, Tokenized};
pub use tokenize::{TokenizeCollator, TokenizeConfig};

/// Turns one row of a data set into tokens, labels, and whatever else the objective needs.
///
/// That is all a collator decides. Order, packing and the data position are the [`Loader`]'s, so
/// no collator can break a resume.
///
/// ```
/// use tt_collators::{Collator, Examples, Field, Layout};
/// use tt_data::{DataError, Row};
///
/// /// Bytes as tokens; a vowel counts twice in the loss.
/// struct Vowels;
///
/// impl Collator for Vowels {
///     fn layout(&self) -> Layout {
///         Layout::Packed
///     }
///
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::weights()]
///     }
///
///     fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
///         let text = row.text("text")?.as_bytes();
///         let example = examples.add();
///         example.input_ids.extend(text.iter().map(|&byte| u32::from(byte)));
///         example.label_all();
///         let weight = |byte| if b"aeiou".contains(byte) { 2.0f32 } else { 1.0 };
///         example.field("weights")?.extend(text.iter().map(weight));
///         Ok(())
///     }
/// }
/// ```
pub trait Collator: Send + Sync {
    /// How examples are laid out in the rows of a batch.
    fn layout(&self) -> Layout;

    /// What there is in a batch besides tokens and labels.
    fn fields(&self) -> Vec<Field> {
        Vec::new()
    }

    /// What the labels are compared with.
    fn prediction(&self) -> Prediction {
        Prediction::NextToken
    }

    /// The columns of a row that it looks at, each a name or a path such as `meta.text`; `None` for all. What is not among
    /// them may not be read: a row has the others or not, as suits its source.
    fn columns(&self) -> Option<Vec<String>> {
        None
    }

    /// Adds what is made of `row` to `examples`: none, one, or what the layout says.
    ///
    /// Workers call this in any order and as often as they like, so the result may depend on
    /// nothing but the row and [`Examples::seed`].
    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError>;

    /// As [`Collator::encode`], of a row that may be long a part at a time: from `from` on, which is 0 first and then what the
    /// call before has given, in whatever unit the collator counts; `None` says that this was the last part.
    ///
    /// The parts together are one example, whatever the parts' lengths: of rows that are packed each call begins with empty
    /// `examples`, of others they hold what the calls before have made, and the call may never come for what does not fit.
    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        debug_assert_eq!(from, 0, "the only part");
        self.encode(row, examples)?;
        Ok(None)
    }

    /// The last thing done to what was made of a row, or of a part of one: what is drawn at random, such as which tokens are
    /// hidden. It is not kept on disk with the tokens (see [`Collator::keeps`]).
    ///
    /// Parts come in order, each with what the one before has left in [`Examples::carry`], and the result may not depend on
    /// where they end.
    fn finish(&self, _examples: &mut Examples) -> Result<(), DataError> {
        Ok(())
    }

    /// Whether it needs a token that hides others, which a tokenizer that is trained on the data is then given.
    fn hides_tokens(&self) -> bool {
        false
    }

    /// Whether it may skip a row ([`Examples::skip`]). Where each row of a batch is of one row of data, it is then only known by
    /// encoding all rows before which one a batch begins with (`data.start_step`).
    fn may_leave_out(&self) -> bool {
        false
    }

    /// What may be kept on disk of what it makes of a row (`data.token_cache`), if anything may.
    fn keeps(&self) -> Option<Kept> {
        None
    }

    /// The chat template that its text is written by, to go with the tokenizer into checkpoints; `None` leaves the one there.
    fn chat_template(&self) -> Option<String> {
        None
    }

    /// The token that ends an answer, at which generation is to stop too; `None` if it is the end of a document.
    fn answer_end(&self) -> Option<u32> {
        None
    }

    /// What messages call it.
    fn name(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name)
    }
}

/// Tokens that are the same whenever they are made of a row, so that they can be kept on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What they depend on besides the row and the tokenizer.
    pub how: String,
    /// Which of them a collator makes.
    pub what: KeptTokens,
}

/// The tokens of a row that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptTokens {
    /// Those of one column of text, each its own label, however many.
    All,
    /// Those of one example, each its own label or none. Of a row of more than `data.sequence_length`, which the collator makes
    /// shorter in a way of its own, they are made anew.
    Labelled,
}

/// Makes a collator from `data.collator.kwargs`.
pub type BuildCollator =
    fn(&Map<String, Value>, &Arc<Tokenizer>) -> Result<Box<dyn Collator>, DataError>;

/// What `data.collator.type` may name.
pub const TABLE: Table<BuildCollator> = Table::new(
    "collator",
    &[
        Entry::new::<TokenizeConfig>(
            "tokenize.TokenizeCollator",
            "a column of text to tokens, packed or padded",
            TokenizeCollator::build,
        ),
        Entry::new::<ChatConfig>(
            "chat.ChatCollator",
            "conversations to tokens, trained on the answers",
            ChatCollator::build,
        ),
        Entry::new::<MaskedLMConfig>(
            "masked_lm.MaskedLMCollator",
            "a column of text, some tokens of which are hidden",
            MaskedLMCollator::build,
        ),
        Entry::new::<PackingConfig>(
            "packing.PackingCollator",
            "documents packed whole, the longest first, or one after another",
            PackingCollator::build,
        ),
        Entry::new::<SimpleConfig>(
            "simple.SimpleCollator",
            "columns of token ids, labels and attention mask, as they are",
            SimpleCollator::build,
        ),
        Entry::new::<SingleSequenceConfig>(
            "single_sequence.SingleSequenceCollator",
            "a column of token ids, cut off or padded",
            SingleSequenceCollator::build,
        ),
        Entry::new::<SeqToSeqConfig>(
            "seq_to_seq.SeqToSeqCollator",
            "an input and the output to it, trained on the output",
            SeqToSeqCollator::build,
        ),
        Entry::new::<PreferenceConfig>(
            "preference.PreferenceCollator",
            "pairs of a chosen and a rejected answer, in adjacent rows",
            PreferenceCollator::build,
        ),
    ],
);
