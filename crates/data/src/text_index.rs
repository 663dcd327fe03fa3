//! Where the documents of a text file stand: what is read of a corpus before anything of it is used.
//!
//! A large file is read whole for that once: its index is kept in the user's cache folder, `text-indexes/<hash>`, named by
//! what it depends on: the file's path, length and time of change, and the separator. One that cannot be read or written costs
//! the time to make it again, not the run.
//!
//! Layout of a kept index: for each document four u64, little-endian, the fields of [`Document`] in order; then BLAKE3 of
//! all of it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::text::Separator;

/// To be raised when an index would come out differently.
const FORMAT: u64 = 1;
/// A smaller file takes a tenth of a second, and is not kept.
const LEAST_BYTES: u64 = 64 << 20;

/// Where a document stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Document {
    /// Its first line, from 1.
    pub line: u64,
    /// Its first byte.
    pub start: u64,
    pub bytes: u64,
    /// Of its lines.
    pub hash: u64,
}

/// The documents of the file at `path`, from the folder `cache` if they are known.
pub(crate) fn documents_of(
    path: &Path,
    separator: &Separator,
    cache: Option<&Path>,
) -> Result<Vec<Document>, DataError> {
    let kept = cache.and_then(|cache| kept_at(path, separator, cache));
    if let Some(kept) = &kept
        && let Some(documents) = read_kept(kept)
    {
        return Ok(documents);
    }
    let documents = index_file(path, separator)?;
    // A file that grew meanwhile is another one, and its index would be found by nobody.
    if let Some(kept) = kept
        && cache
            .and_then(|cache| kept_at(path, separator, cache))
            .as_ref()
            == Some(&kept)
    {
        let _ = keep(&kept, &documents);
    }
    Ok(documents)
}

/// The name of the index of a file that is large enough.
fn kept_at(path: &Path, separator: &Separator, cache: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.len() < LEAST_BYTES {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(&FORMAT.to_le_bytes());
    add(fs::canonicalize(path).ok()?.as_os_str().as_encoded_bytes());
    add(&metadata.len().to_le_bytes());
    add(&metadata.mtime().to_le_bytes());
    add(&metadata.mtime_nsec().to_le_bytes());
    add(String::from(separator.clone()).as_bytes());
    let name = hasher.finalize().to_hex();
    Some(cache.join("text-indexes").join(&name[..32]))
}

fn read_kept(path: &Path) -> Option<Vec<Document>> {
    let bytes = fs::read(path).ok()?;
    let (content, hash) = bytes.split_last_chunk::<{ blake3::OUT_LEN }>()?;
    if blake3::hash(content) != *hash {
        return None;
    }
    let (numbers, rest) = content.as_chunks::<8>();
    let (documents, more) = numbers.as_chunks::<4>();
    let documents = documents.iter().map(|numbers| {
        let [line, start, bytes, hash] = numbers.map(u64::from_le_bytes);
        Document {
            line,
            start,
            bytes,
            hash,
        }
    });
    (rest.is_empty() && more.is_empty()).then(|| documents.collect())
}

fn keep(path: &Path, documents: &[Document]) -> tt_disk::Result<()> {
    let numbers = documents
        .iter()
        .flat_map(|it| [it.line, it.start, it.bytes, it.hash]);
    let mut bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    if let Some(folder) = path.parent() {
        tt_disk::create_dir(folder)?;
    }
    tt_disk::write_file(path, &bytes)
}

fn index_file(path: &Path, separator: &Separator) -> Result<Vec<Document>, DataError> {
    let mut reader = BufReader::new(File::open(path).map_err(DataError::io(path))?);
    let mut builder = DocumentBuilder::default();
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
    Ok(builder.documents)
}

/// Grows documents, line by line.
#[derive(Default)]
pub(crate) struct DocumentBuilder {
    /// Of what is added next.
    pub line: u64,
    pub documents: Vec<Document>,
    /// Line and first byte, last byte + 1, of the document so far.
    extent: Option<(u64, u64, u64)>,
    hasher: blake3::Hasher,
}

impl DocumentBuilder {
    /// The next part, which begins at byte `offset`.
    pub(crate) fn add(&mut self, offset: u64, part: &str) {
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

    /// Ends the document, if there is one.
    pub(crate) fn finish(&mut self) {
        let Some((line, start, end)) = self.extent.take() else {
            return;
        };
        let hash = self.hasher.finalize();
        self.hasher.reset();
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        self.documents.push(Document {
            line,
            start,
            bytes: end - start,
            hash: u64::from_le_bytes(first),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large file of nothing (it takes no disk) and an index that nobody would make of it: whoever gets that has not read
    /// the file.
    #[test]
    fn a_large_file_is_indexed_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.txt");
        let file = File::create(&path).unwrap();
        file.set_len(LEAST_BYTES).unwrap();
        let cache = folder.path().join("cache");
        let documents = |separator| documents_of(&path, &separator, Some(&cache)).unwrap();
        let made_up = [Document {
            line: 7,
            start: 1,
            bytes: 2,
            hash: 3,
        }];
        let kept = kept_at(&path, &Separator::File, &cache).unwrap();
        keep(&kept, &made_up).unwrap();
        assert_eq!(documents(Separator::File), made_up);
        assert_ne!(documents(Separator::BlankLine), made_up);

        let mut damaged = fs::read(&kept).unwrap();
        damaged[0] ^= 1;
        fs::write(&kept, damaged).unwrap();
        let read = documents(Separator::File);
        assert_ne!(read, made_up);
        assert_eq!(read_kept(&kept).unwrap(), read, "and kept");

        file.set_len(LEAST_BYTES + 1).unwrap();
        assert_ne!(kept_at(&path, &Separator::File, &cache), Some(kept));
    }

    #[test]
    fn a_small_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.txt");
        fs::write(&path, "one\n\ntwo\n").unwrap();
        let cache = folder.path().join("cache");
        let documents = documents_of(&path, &Separator::BlankLine, Some(&cache)).unwrap();
        assert_eq!(documents.len(), 2);
        assert!(!cache.exists());
    }
}
