//! Where rows come from: random access by index, so that order is decided elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use crate::blocks::Blocks;
use crate::config::DataConfig;
use crate::error::DataError;
use crate::row::Row;

/// Rows by index, read by several workers at once.
pub trait Source: Send + Sync {
    /// Number of rows; `None` if there is no end.
    fn num_rows(&self) -> Option<u64>;

    /// Bytes of the text of each row, where that is known without reading it: for messages.
    fn row_bytes(&self) -> Option<Vec<u64>> {
        None
    }

    /// How rows lie together, if one alone costs as much as its neighbours; `None` if each can be read alone.
    fn blocks(&self) -> Option<Arc<Blocks>> {
        None
    }

    /// The files that rows are read from, in order.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The data sets that it is made of, if it is a mixture of several.
    fn parts(&self) -> &[Part] {
        &[]
    }

    /// Which of [`Source::parts`] row `index` is from, and its row there.
    fn part(&self, index: u64) -> (usize, u64) {
        (0, index)
    }

    /// Reads row `index < num_rows` into `row`, whose buffers are reused.
    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError>;
}

/// One of the data sets that a mixture is made of.
#[derive(Clone)]
pub struct Part {
    /// What it is called in the mixture.
    pub name: String,
    /// Its rows of the split, each once.
    pub source: Arc<dyn Source>,
    /// As [`Dataset::fingerprint`].
    pub fingerprint: String,
}

/// The two splits of a data set.
#[derive(Clone)]
pub struct Dataset {
    /// What is trained on.
    pub train: Arc<dyn Source>,
    /// What is validated on: no rows of the other.
    pub validation: Arc<dyn Source>,
    /// Differs where the rows or their order do: a [`Cursor`](crate::Cursor) is of use with equal
    /// ones.
    pub fingerprint: String,
}

/// Opens the data set that `data.dataset.url` names, from the whole group `data`. Its options are
/// `data.dataset.kwargs`: see [`typed_kwargs`](crate::typed_kwargs).
pub type OpenSource = fn(&DataConfig) -> Result<Dataset, DataError>;
