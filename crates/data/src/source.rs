//! Where rows come from: random access by index, so that order is decided elsewhere.

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

    /// Reads row `index < num_rows` into `row`, whose buffers are reused.
    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError>;
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
