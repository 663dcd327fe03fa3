//! What can be wrong with data, each variant carrying what the user needs to find it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::location::Location;

/// An error of the data side. Paths and offsets are the user's own, so that he can go there.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, Error)]
pub enum DataError {
    #[error("unknown data set `{url}` (data.dataset.url); known: {known}")]
    UnknownDataset { url: String, known: String },

    #[error("unknown collator `{name}` (data.collator.type); known: {known}")]
    UnknownCollator { name: String, known: String },

    #[error(
        "data set `{url}` needs `data.path`: a file or a glob such as `data.path='books/*.txt'`"
    )]
    MissingPath { url: String },

    #[error("`{key}`: {message}")]
    BadValue { key: &'static str, message: String },

    #[error("`{key}`: no such file: {path}")]
    NoSuchFile { key: &'static str, path: PathBuf },

    #[error("`{key}`: no file matches {pattern}")]
    NoMatch { key: &'static str, pattern: String },

    #[error("`{key}`: {path} is a folder; name its files, for example {path}/*.txt")]
    IsFolder { key: &'static str, path: PathBuf },

    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },

    #[error("{path}: not UTF-8: invalid byte at offset {offset}")]
    InvalidUtf8 { path: PathBuf, offset: u64 },

    /// A file that is cut off, damaged, or no file of its kind.
    #[error("{path}: {message}")]
    BadFile { path: PathBuf, message: String },

    #[error(
        "{path}: no room to decompress it into {folder}: {source}; set TMPDIR to a folder with more"
    )]
    Unpack {
        path: PathBuf,
        folder: PathBuf,
        source: io::Error,
    },

    #[error("{at}: {message}")]
    BadRow { at: Location, message: String },

    #[error("{path}: changed while in use; start the run again")]
    FileChanged { path: PathBuf },

    #[error("no data: {what} has no documents")]
    Empty { what: String },

    #[error("no data: {what} has no rows")]
    NoRows { what: String },

    #[error("{what} has one row only, so none is left for validation; set `data.val_path`")]
    OneRow { what: String },

    #[error("`{key}`: no file of rows in the folder {path}")]
    NoFiles { key: &'static str, path: PathBuf },

    #[error(
        "collator `{collator}` makes no token of {rows} rows one after another, among them {at}"
    )]
    NoTokens {
        collator: String,
        rows: u64,
        at: Location,
    },

    #[error(
        "{what} has one document only, so none is left for validation; \
         set `data.val_path`, or split it with `data.dataset.kwargs.separator`"
    )]
    NoValidation { what: String },

    #[error("{rows} rows cannot be shared among {world} ranks")]
    FewerRowsThanRanks { rows: u64, world: u64 },

    #[error("{at}: no field `{field}`; the row has: {}", .fields.join(", "))]
    MissingField {
        at: String,
        field: String,
        fields: Vec<String>,
    },

    #[error("{at}: field `{field}` is null; data.nulls=skip leaves such rows out")]
    NullField { at: String, field: String },

    #[error("{at}: field `{field}` is {found}, where {wanted} is needed")]
    WrongField {
        at: String,
        field: String,
        wanted: &'static str,
        found: String,
    },

    /// `place` is empty until it is known: see [`DataError::of_collator`].
    #[error("{place}field `{field}`: {message}")]
    BadField {
        place: String,
        field: String,
        message: String,
    },

    /// What a source or a collator of one's own has met.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),

    #[error("the data position to resume from ({cursor}) is not in this data; has it changed?")]
    CursorOutsideData { cursor: String },

    #[error(
        "nothing to predict in the {split} split: from {at} on, collator `{collator}` gives no label that the loss counts: \
         all are -100, have no weight, or are of the first token of a document or row (data.sequence_length={sequence_length})"
    )]
    NothingToPredict {
        split: &'static str,
        collator: String,
        at: Location,
        sequence_length: usize,
    },

    #[error("tokenizer {path}: {message}")]
    Tokenizer { path: PathBuf, message: String },

    #[error(
        "tokenizer {path} names no end-of-text token; set `data.tokenizer.eos_token` to the one it has"
    )]
    NoEndOfText { path: PathBuf },

    #[error("cannot start a data worker, with data.num_workers {num_workers}: {source}")]
    StartWorker {
        num_workers: usize,
        source: io::Error,
    },

    #[error("data worker panicked: {message}")]
    WorkerPanicked { message: String },

    /// Not a failure: whoever waited no longer wants it.
    #[error("waiting for data was interrupted")]
    Interrupted,
}

impl DataError {
    /// What is wrong with a collator's field.
    pub fn field(name: &str, message: impl Into<String>) -> Self {
        Self::BadField {
            place: String::new(),
            field: name.to_owned(),
            message: message.into(),
        }
    }

    /// Says of a field which collator has made it, and of which row.
    #[must_use]
    pub fn of_collator(self, collator: &str, at: Option<&Location>) -> Self {
        match self {
            Self::BadField { field, message, .. } => Self::BadField {
                place: match at {
                    Some(at) => format!("collator `{collator}`, {at}: "),
                    None => format!("collator `{collator}`: "),
                },
                field,
                message,
            },
            other => other,
        }
    }

    /// An error of one's own.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    pub(crate) fn file(path: &Path, message: impl Into<String>) -> Self {
        Self::BadFile {
            path: path.to_owned(),
            message: message.into(),
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
