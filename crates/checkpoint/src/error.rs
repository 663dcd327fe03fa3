//! What can go wrong, each with the file it went wrong at.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::bytes::Bytes;

/// What is read or written, or why not.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the bytes of a tensor that is to be written could not be had.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Any failure to write or read a checkpoint or a weights file.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Completes "cannot ...": "create", "read", "give the name step-00000010 to".
        action: String,
        path: PathBuf,
        source: io::Error,
    },

    #[error(
        "no space left on the disk for {}: the checkpoint needs {}{}",
        path.display(),
        Bytes(*needed_bytes),
        available_bytes.map(|n| format!(", {} are free", Bytes(n))).unwrap_or_default(),
    )]
    DiskFull {
        path: PathBuf,
        needed_bytes: u64,
        available_bytes: Option<u64>,
    },

    #[error("another process is writing checkpoints in {}", dir.display())]
    InUse { dir: PathBuf },

    /// Two files of one checkpoint would have this name, or it has no name at all.
    #[error("cannot copy {} into a checkpoint: the name is taken or empty", path.display())]
    AssetName { path: PathBuf },

    #[error("tensor `{name}`: {shape:?} of {dtype} does not fit {actual_bytes} bytes")]
    TensorSize {
        name: String,
        dtype: safetensors::Dtype,
        shape: Vec<usize>,
        actual_bytes: usize,
    },

    /// The tensors to be written are for the caller to read, and it could not.
    #[error("cannot read the tensor `{name}` to write it")]
    Source { name: String, source: SourceError },

    /// Never seen by the caller, who knows why.
    #[error("the data of the tensors did not come to its end")]
    Abandoned,

    #[error("the checkpoint writer stopped with a panic: {0}")]
    WriterPanicked(String),

    #[error(transparent)]
    Damaged(#[from] Damage),

    #[error("{} is truncated: {}", path.display(), cut_short(*expected_bytes, *actual_bytes))]
    Truncated {
        path: PathBuf,
        expected_bytes: u64,
        actual_bytes: u64,
    },

    #[error("{} is not a valid {what} file: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        /// "safetensors", "JSON", "safetensors index", "GGUF".
        what: &'static str,
        reason: String,
    },

    #[error("no safetensors weights in {}{hint}", path.display())]
    NoWeights { path: PathBuf, hint: String },

    #[error(
        "no tensor `{name}` in {}{}",
        path.display(),
        nearest.as_ref().map(|n| format!("; the nearest is `{n}`")).unwrap_or_default(),
    )]
    NoTensor {
        path: PathBuf,
        name: String,
        nearest: Option<String>,
    },

    #[error("elements {run:?} of tensor `{name}`, which has {num_elements}")]
    Beyond {
        name: String,
        run: Range<usize>,
        num_elements: usize,
    },

    #[error("tensor `{name}` in {} is {dtype}, which does not convert to f32", path.display())]
    NotAFloat {
        path: PathBuf,
        name: String,
        dtype: safetensors::Dtype,
    },
}

fn cut_short(expected_bytes: u64, actual_bytes: u64) -> String {
    match actual_bytes {
        0 => "the file is empty".to_owned(),
        // Not even the length of the header is there.
        1..8 => format!("the file has {actual_bytes} bytes, and a header alone takes more"),
        _ => format!("its header declares {expected_bytes} bytes, the file has {actual_bytes}"),
    }
}

impl From<tt_disk::Error> for Error {
    fn from(error: tt_disk::Error) -> Self {
        match error {
            tt_disk::Error::Io {
                action,
                path,
                source,
            } => Self::io(action, &path, source),
            tt_disk::Error::Read { path, source } => Self::io("read", &path, source),
        }
    }
}

impl Error {
    pub(crate) fn io(action: impl Into<String>, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action: action.into(),
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the cause is a full disk or an exhausted quota.
    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ))
    }
}

/// Why a checkpoint folder cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    /// The folder.
    pub dir: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a checkpoint.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Half-written by something other than [`crate::Writer`], or half-copied.
    NoManifest,
    ManifestUnreadable(String),
    FileMissing(String),
    WrongSize {
        file: String,
        expected_bytes: u64,
        actual_bytes: u64,
    },
    WrongChecksum(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {} is damaged: ", self.dir.display())?;
        match &self.problem {
            Problem::NoManifest => write!(f, "it has no manifest.json, so it was never completed"),
            Problem::ManifestUnreadable(reason) => write!(f, "manifest.json: {reason}"),
            Problem::FileMissing(file) => write!(f, "{file} is missing"),
            Problem::WrongSize {
                file,
                expected_bytes,
                actual_bytes,
            } => write!(
                f,
                "{file} has {actual_bytes} bytes, the manifest says {expected_bytes}"
            ),
            Problem::WrongChecksum(file) => {
                write!(f, "the content of {file} does not match its checksum")
            }
        }
    }
}
