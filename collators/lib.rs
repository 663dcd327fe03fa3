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

mod baselines;
mod batch;
mod loader;
mod pipeline;
mod tokenize;

use std::sync::Arc;

use serde_json::{Map, Value};
use tt_config::{Entry, Table};
use tt_data::{DataError, Row, Tokenizer};

pub use baselines::Baselines;
pub use batch::{Batch, IGNORE};
pub use loader::{BatchShape, Loader};
pub use pipeline::{Pipeline, PipelineOptions};
pub use tokenize::{TokenizeCollator, TokenizeConfig};

/// Turns one row of a data set into tokens and labels.
///
/// That is all a collator decides. Order, packing and the data position are the [`Loader`]'s, so
/// no collator can break a resume.
pub trait Collator: Send + Sync {
    /// How examples are laid out in the rows of a batch.
    fn layout(&self) -> Layout;

    /// Writes the tokens of `row` and their labels into `example`, which is empty.
    ///
    /// Workers call this in any order and as often as they like, so the result may depend on
    /// nothing but the row.
    fn encode(&self, row: &Row, example: &mut Example) -> Result<(), DataError>;
}

/// Tokens of one row of a data set, with as many labels: the tokens themselves, not shifted, or
/// [`IGNORE`] where the loss should not look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Example {
    pub input_ids: Vec<u32>,
    pub labels: Vec<i64>,
}

/// How examples are laid out in the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One after another; an example that does not fit goes on in the next row, as a segment of
    /// its own.
    Packed,
    /// One a row, cut off or padded on the right.
    Padded,
}

/// Makes a collator from `data.collator.kwargs`.
pub type BuildCollator =
    fn(&Map<String, Value>, &Arc<Tokenizer>) -> Result<Box<dyn Collator>, DataError>;

/// What `data.collator.type` may name.
pub const TABLE: Table<BuildCollator> = Table::new(
    "collator",
    &[Entry::new::<TokenizeConfig>(
        "tokenize.TokenizeCollator",
        "a column of text to tokens, packed or padded",
        TokenizeCollator::build,
    )],
);
