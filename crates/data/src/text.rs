//! The data set `text`: documents in plain text files.
//!
//! The files are read once for an index of where documents stand ([`crate::text_index`]); the text
//! itself is read when its turn comes. A document is stripped of white space around it, and empty
//! ones are left out; a line ends with a line feed, whatever ends it in the file. Memory: 40 bytes a document.
//!
//! A document is held out for validation if the hash of its lines falls under `val_fraction`, so
//! the split depends neither on the order of files nor on the seed, and copies of a document are
//! all on one side. Of a document that is the only one, its last lines are held out.
//!
//! Errors name the file, and the byte where it stops being UTF-8.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{DataConfig, typed_kwargs};
use crate::error::DataError;
use crate::files::find;
use crate::location::Location;
use crate::row::Row;
use crate::source::{Dataset, Source};
use crate::text_index::{Document, DocumentBuilder, documents_of};
use crate::tokenizer_cache::cache_folder;

/// `data.dataset.kwargs` of `text`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// What stands between documents: `file` (the default: a file is a document, as of books), `blank_line`,
    /// or a string within a line, such as `<|endoftext|>`.
    pub separator: Separator,
}

/// What stands between documents.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Separator {
    /// An empty line.
    BlankLine,
    /// Nothing: each file is a document.
    #[default]
    File,
    /// This text.
    Text(String),
}

impl From<String> for Separator {
    fn from(text: String) -> Self {
        match text.as_str() {
            "blank_line" => Self::BlankLine,
            "file" => Self::File,
            _ => Self::Text(text),
        }
    }
}

impl From<Separator> for String {
    fn from(separator: Separator) -> Self {
        match separator {
            Separator::BlankLine => "blank_line".to_owned(),
            Separator::File => "file".to_owned(),
            Separator::Text(text) => text,
        }
    }
}

/// One split of the documents.
pub(crate) struct Text {
    files: Arc<[Arc<Path>]>,
    /// Of each, the number of its file.
    documents: Vec<(usize, Document)>,
}

impl Text {
    pub(crate) fn open(config: &DataConfig) -> Result<Dataset, DataError> {
        let TextConfig { separator } = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
        if let Separator::Text(text) = &separator
            && (text.is_empty() || text.contains('\n'))
        {
            return Err(DataError::BadValue {
                key: "data.dataset.kwargs.separator",
                message: "must be `blank_line`, `file`, or a string within a line".to_owned(),
            });
        }
        let pattern = config.path.as_deref().ok_or(DataError::MissingPath {
            url: config.dataset.url.clone(),
        })?;
        let documents = Self::index("data.path", pattern, &separator)?;
        let (train, validation) = match &config.val_path {
            Some(pattern) => (
                documents,
                Self::index("data.val_path", pattern, &separator)?,
            ),
            None => documents.split(config.val_fraction, pattern)?,
        };
        Ok(Dataset {
            fingerprint: fingerprint([&train, &validation]),
            train: Arc::new(train),
            validation: Arc::new(validation),
        })
    }

    fn index(key: &'static str, pattern: &str, separator: &Separator) -> Result<Self, DataError> {
        let files: Arc<[Arc<Path>]> = find(key, pattern)?.into_iter().map(Arc::from).collect();
        let cache = cache_folder();
        let mut documents = Vec::new();
        for (file, path) in files.iter().enumerate() {
            let of_file = documents_of(path, separator, cache.as_deref())?;
            documents.extend(of_file.into_iter().map(|document| (file, document)));
        }
        if documents.is_empty() {
            return Err(DataError::Empty {
                what: pattern.to_owned(),
            });
        }
        Ok(Self { files, documents })
    }

    fn split(self, val_fraction: f64, pattern: &str) -> Result<(Self, Self), DataError> {
        // A small collection may have no document on one side by chance; the outermost hash goes
        // there then, with its copies.
        let hashes = || self.documents.iter().map(|(_, document)| document.hash);
        let lowest = hashes().min().unwrap_or_default();
        let highest = hashes().max().unwrap_or_default();
        if let [only] = self.documents[..] {
            return self.split_document(only, val_fraction, pattern);
        }
        if lowest == highest {
            return Err(DataError::NoValidation {
                what: pattern.to_owned(),
            });
        }
        let bound = (val_fraction * 2_f64.powi(64)) as u64; // saturates at 1.0
        let bound = bound.clamp(lowest + 1, highest);
        let (validation, train) = self
            .documents
            .into_iter()
            .partition(|(_, it)| it.hash < bound);
        let side = |documents| Self {
            files: Arc::clone(&self.files),
            documents,
        };
        Ok((side(train), side(validation)))
    }
}

impl Text {
    /// The first lines of a document, and the last, which are about `val_fraction` of it.
    fn split_document(
        &self,
        (file, document): (usize, Document),
        val_fraction: f64,
        pattern: &str,
    ) -> Result<(Self, Self), DataError> {
        let path = &self.files[file];
        let mut bytes = Vec::new();
        open_at(path, &document)?
            .read_to_end(&mut bytes)
            .map_err(DataError::io(path))?;
        let wanted = (bytes.len() as f64 * (1.0 - val_fraction)) as usize;
        let is_line_end = |at: &usize| bytes[*at] == b'\n';
        let after = (wanted..bytes.len()).find(is_line_end);
        let before = || (0..wanted.min(bytes.len())).rev().find(is_line_end);
        let Some(line_end) = after.or_else(before) else {
            let what = pattern.to_owned();
            return Err(DataError::NoValidation { what });
        };
        let mut builder = DocumentBuilder::default();
        let mut start = document.start;
        for (number, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            builder.line = document.line + number as u64;
            if start == document.start + line_end as u64 + 1 {
                builder.finish();
            }
            let text = str::from_utf8(line).map_err(|_| DataError::FileChanged {
                path: path.to_path_buf(),
            })?;
            builder.add(start, text);
            start += line.len() as u64;
        }
        builder.finish();
        let side = |documents| Self {
            files: Arc::clone(&self.files),
            documents,
        };
        match builder.documents[..] {
            [first, last] => Ok((side(vec![(file, first)]), side(vec![(file, last)]))),
            _ => Err(DataError::NoValidation {
                what: pattern.to_owned(),
            }),
        }
    }
}

/// The bytes of a document.
fn open_at(path: &Path, document: &Document) -> Result<std::io::Take<File>, DataError> {
    let mut file = File::open(path).map_err(DataError::io(path))?;
    file.seek(SeekFrom::Start(document.start))
        .map_err(DataError::io(path))?;
    Ok(file.take(document.bytes))
}

impl Source for Text {
    fn row_bytes(&self) -> Option<Vec<u64>> {
        Some(
            self.documents
                .iter()
                .map(|(_, document)| document.bytes)
                .collect(),
        )
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.documents.len() as u64)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|path| path.to_path_buf()).collect()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let (file, document) = self.documents[index as usize];
        let path = &self.files[file];
        row.at = Location::Line {
            file: Arc::clone(path),
            line: document.line,
        };
        let text = row.text_mut("text");
        text.reserve(document.bytes as usize);
        match open_at(path, &document)?.read_to_string(text) {
            Ok(bytes) if bytes as u64 == document.bytes => {
                if text.contains("\r\n") {
                    *text = text.replace("\r\n", "\n");
                }
                Ok(())
            }
            Err(error) if error.kind() != ErrorKind::InvalidData => Err(DataError::io(path)(error)),
            // It was longer, or UTF-8, when the index was made.
            _ => Err(DataError::FileChanged {
                path: path.to_path_buf(),
            }),
        }
    }
}

/// A hash of the documents of both splits, in order, whatever their files are called.
fn fingerprint(splits: [&Text; 2]) -> String {
    let mut hasher = blake3::Hasher::new();
    for Text { documents, .. } in splits {
        hasher.update(&(documents.len() as u64).to_le_bytes());
        for (_, document) in documents {
            hasher.update(&document.hash.to_le_bytes());
        }
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
