//! The data set `text`: documents in plain text files.
//!
//! The files are read once, a line at a time, for an index of where documents stand; the text
//! itself is read when its turn comes. A document is stripped of white space around it, and empty
//! ones are left out; a line ends with a line feed, whatever ends it in the file. Memory: 40 bytes a document.
//!
//! A document is held out for validation if the hash of its lines falls under `val_fraction`, so
//! the split depends neither on the order of files nor on the seed, and copies of a document are
//! all on one side. Of a document that is the only one, its last lines are held out.
//!
//! Errors name the file, and the byte where it stops being UTF-8.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
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
    documents: Vec<Document>,
}

#[derive(Debug, Clone, Copy)]
struct Document {
    file: usize,
    line: u64,
    start: u64,
    bytes: u64,
    hash: u64,
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
        let mut documents = Vec::new();
        for (file, path) in files.iter().enumerate() {
            index_file(file, path, separator, &mut documents)?;
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
        let hashes = || self.documents.iter().map(|document| document.hash);
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
        let (validation, train) = self.documents.into_iter().partition(|d| d.hash < bound);
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
        document: Document,
        val_fraction: f64,
        pattern: &str,
    ) -> Result<(Self, Self), DataError> {
        let path = &self.files[document.file];
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
        let mut parts = Vec::new();
        let mut builder = DocumentBuilder::new(document.file, &mut parts);
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
        match parts[..] {
            [first, last] => Ok((side(vec![first]), side(vec![last]))),
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
                .map(|document| document.bytes)
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
        let document = self.documents[index as usize];
        let path = &self.files[document.file];
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
        for document in documents {
            hasher.update(&document.hash.to_le_bytes());
        }
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Appends the documents of one file.
fn index_file(
    file: usize,
    path: &Path,
    separator: &Separator,
    documents: &mut Vec<Document>,
) -> Result<(), DataError> {
    let mut reader = BufReader::new(File::open(path).map_err(DataError::io(path))?);
    let mut builder = DocumentBuilder::new(file, documents);
    let mut bytes = Vec::new();
    let mut offset = 0;
    for line_number in 1.. {
        bytes.clear();
        let read = reader
            .read_until(b'\n', &mut bytes)
            .map_err(DataError::io(path))?;
        if read == 0 {
            break;
        }
        // No character has a line feed within its bytes, so each line is UTF-8 by itself.
        let line = str::from_utf8(&bytes).map_err(|error| DataError::InvalidUtf8 {
            path: path.to_owned(),
            offset: offset + error.valid_up_to() as u64,
        })?;
        let byte_order_mark = if offset == 0 && line.starts_with('\u{feff}') {
            3
        } else {
            0
        };
        builder.line = line_number;
        match separator {
            Separator::Text(text) => {
                let mut parts = line[byte_order_mark..].split(text.as_str());
                let mut start = offset + byte_order_mark as u64;
                if let Some(part) = parts.next() {
                    builder.add(start, part);
                    start += part.len() as u64;
                }
                for part in parts {
                    builder.finish();
                    start += text.len() as u64;
                    builder.add(start, part);
                    start += part.len() as u64;
                }
            }
            Separator::BlankLine if line.trim().is_empty() => builder.finish(),
            _ => builder.add(offset + byte_order_mark as u64, &line[byte_order_mark..]),
        }
        offset += read as u64;
    }
    builder.finish();
    Ok(())
}

/// Grows one document, line by line.
struct DocumentBuilder<'a> {
    file: usize,
    line: u64,
    /// Line and first byte, last byte + 1, of the document so far.
    extent: Option<(u64, u64, u64)>,
    hasher: blake3::Hasher,
    documents: &'a mut Vec<Document>,
}

impl<'a> DocumentBuilder<'a> {
    fn new(file: usize, documents: &'a mut Vec<Document>) -> Self {
        Self {
            file,
            line: 1,
            extent: None,
            hasher: blake3::Hasher::new(),
            documents,
        }
    }

    fn add(&mut self, offset: u64, part: &str) {
        let text = part.trim_end();
        let end = offset + text.len() as u64;
        let text = text.trim_start();
        if text.is_empty() {
            return;
        }
        let start = end - text.len() as u64;
        let (line, start, _) = self.extent.unwrap_or((self.line, start, end));
        self.extent = Some((line, start, end));
        self.hasher.update(text.as_bytes());
        self.hasher.update(b"\n");
    }

    fn finish(&mut self) {
        let Some((line, start, end)) = self.extent.take() else {
            return;
        };
        let hash = self.hasher.finalize();
        self.hasher.reset();
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        self.documents.push(Document {
            file: self.file,
            line,
            start,
            bytes: end - start,
            hash: u64::from_le_bytes(first),
        });
    }
}
