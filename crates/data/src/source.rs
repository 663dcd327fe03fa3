//! Where rows come from: random access by index, so that order is decided elsewhere.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use tt_config::{Entry, Table};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::stories::{Stories, StoriesConfig};
use crate::text::{Text, TextConfig};

/// Rows by index, read by several workers at once.
pub trait Source: Send + Sync {
    /// Number of rows; `None` if there is no end.
    fn num_rows(&self) -> Option<u64>;

    /// Reads row `index < num_rows` into `row`, whose buffers are reused.
    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError>;
}

/// The two splits of a data set.
#[derive(Clone)]
pub struct Dataset {
    pub train: Arc<dyn Source>,
    pub validation: Arc<dyn Source>,
    /// Differs where the rows or their order do: a [`Cursor`](crate::Cursor) is of use with equal
    /// ones.
    pub fingerprint: String,
}

/// Opens a data set.
pub type OpenDataset = fn(&DataConfig) -> Result<Dataset, DataError>;

/// What `data.dataset.url` may name.
pub const DATASETS: Table<OpenDataset> = Table::new(
    "data set",
    &[
        Entry::new::<StoriesConfig>(
            "stories",
            "short stories, sums and look-ups, made by the program",
            Stories::open,
        ),
        Entry::new::<TextConfig>("text", "plain text files", Text::open),
    ],
);

impl Dataset {
    /// Opens the data set that `config.dataset.url` names in [`DATASETS`].
    pub fn open(config: &DataConfig) -> Result<Self, DataError> {
        let url = config.dataset.url.as_str();
        let datasets = DATASETS;
        let entry = datasets.get(url).map_err(|_| DataError::UnknownDataset {
            url: url.to_owned(),
            known: datasets.names().join(", "),
        })?;
        (entry.build)(config)
    }
}

/// One row of a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Values by column.
    pub fields: Map<String, Value>,
    /// Where it stands, for messages.
    pub at: Location,
}

impl Row {
    /// The string in column `field`. Errors: there is none, or it is something else.
    pub fn text(&self, field: &str) -> Result<&str, DataError> {
        match self.fields.get(field) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(DataError::NotText {
                at: self.at.to_string(),
                field: field.to_owned(),
            }),
            None => Err(DataError::MissingField {
                at: self.at.to_string(),
                field: field.to_owned(),
                fields: self.fields.keys().cloned().collect(),
            }),
        }
    }

    /// The string in column `field`, emptied to be written; its buffer is the last row's.
    pub fn text_mut(&mut self, field: &str) -> &mut String {
        if !matches!(self.fields.get(field), Some(Value::String(_))) {
            self.fields
                .insert(field.to_owned(), Value::String(String::new()));
        }
        match self.fields.get_mut(field) {
            Some(Value::String(text)) => {
                text.clear();
                text
            }
            _ => unreachable!("the line above put a string there"),
        }
    }
}

/// Where a row stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Location {
    #[default]
    Unknown,
    /// A file and the line where the row begins, counted from 1.
    Line { file: Arc<Path>, line: u64 },
    /// A row made by a generator.
    Generated { source: &'static str, index: u64 },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("a row"),
            Self::Line { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Generated { source, index } => write!(f, "{source}, row {index}"),
        }
    }
}
