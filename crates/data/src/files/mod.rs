//! Files of rows: Parquet, Arrow and JSON, each read row by row when a row's turn comes.

mod arrow;
mod block_file;
mod check;
mod columns;
mod compressed;
mod dataset;
mod decoded_sizes;
mod find;
mod json;
mod parquet;
mod projection;
mod read_at;
mod remote;
mod split;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use check::check_files;
pub use dataset::{DataFiles, FilesConfig, HubConfig, Paths, by_split, holds_rows};
pub(crate) use dataset::{open_arrow, open_files, open_hub, open_jsonl, open_parquet};
pub(crate) use find::find;
pub use remote::{RemoteFile, RemoteFiles};

use crate::concat::concat;
use crate::error::DataError;
use crate::source::Source;
use projection::Columns;
use remote::{AT_ONCE, PlacedFile};

/// How rows are kept in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Parquet,
    Arrow,
    Json,
}

impl Format {
    /// By the end of the name; `None` if it says nothing.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
        if ends(&[".parquet"]) {
            Some(Self::Parquet)
        } else if ends(&[".arrow"]) {
            Some(Self::Arrow)
        } else if [".jsonl", ".json", ".ndjson"]
            .iter()
            .any(|end| plain.ends_with(end))
        {
            Some(Self::Json)
        } else {
            None
        }
    }

    fn open(
        self,
        path: &Path,
        columns: &Columns,
        remotes: &RemoteFiles,
    ) -> Result<Arc<dyn Source>, DataError> {
        Ok(match self {
            Self::Parquet => Arc::new(parquet::open(path, columns, remotes)?),
            Self::Arrow => Arc::new(arrow::open(path, columns)?),
            Self::Json => Arc::new(json::JsonFile::open(path, columns)?),
        })
    }
}

/// The rows of all `files`, in order; each of `format`, or of the one that its name says. Parquet
/// files may be among `remotes`.
fn open(
    files: &[PathBuf],
    format: Option<Format>,
    columns: &Columns,
    remotes: &RemoteFiles,
) -> Result<Arc<dyn Source>, DataError> {
    let mut sources = Vec::with_capacity(files.len());
    for (index, path) in files.iter().enumerate() {
        if index % AT_ONCE == 0 {
            remotes.reach(&files[index..files.len().min(index + AT_ONCE)]);
        }
        let format = format.or_else(|| Format::of(path)).ok_or_else(|| {
            let message =
                "its name does not say what it is: .parquet, .arrow, .json, .jsonl (.gz, .zst)";
            DataError::file(path, message)
        })?;
        sources.push(format.open(path, columns, remotes)?);
    }
    Ok(concat(sources))
}

/// What changes when the content of `files` does: length, beginning and end of each, as reading all of it would take as
/// long as training on it.
pub(crate) fn fingerprint(
    files: &[PathBuf],
    remotes: &RemoteFiles,
    hasher: &mut blake3::Hasher,
) -> Result<(), DataError> {
    const BYTES: u64 = 1 << 16;
    let mut bytes = vec![0; BYTES as usize];
    for (index, path) in files.iter().enumerate() {
        if index % AT_ONCE == 0 {
            remotes.reach(&files[index..files.len().min(index + AT_ONCE)]);
        }
        let mut read = || {
            let file = PlacedFile::open(path, remotes)?;
            let len = file.num_bytes();
            hasher.update(&len.to_le_bytes());
            for start in [0, len.saturating_sub(BYTES)] {
                let part = &mut bytes[..BYTES.min(len) as usize];
                file.read_exact_at(part, start)?;
                hasher.update(part);
            }
            Ok(())
        };
        read().map_err(DataError::io(path))?;
    }
    Ok(())
}
