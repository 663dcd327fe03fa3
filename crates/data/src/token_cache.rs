//! Tokens of the rows of a source, kept on disk: made once, shared by all runs on the same data and tokenizer.
//!
//! A cache is a folder named by a hash of all that its tokens depend on ([`CacheKey`]), of files `00000.tokens`, ... with the
//! rows of one range each. A file is written aside and renamed, so it is whole or not there: a build that is killed goes on
//! after its last file, and two at once write the same bytes. Which rows are in which file depends on the number of rows
//! alone. The folder may be moved, and so may the data.
//!
//! A file is the ids of all rows, little-endian, 2 bytes each if the vocabulary allows it, else 4; for each row the end of its
//! ids and a checksum of them; and [`FOOTER`] bytes with the sizes and a hash of the key and all of this but the ids. The
//! hash is checked when a file is opened, a row's checksum when it is read. What fails either is set aside and counts as not
//! there. Memory: 16 bytes a row.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::DataError;
use crate::source::Source;
use crate::token_cache_prune::mark_used;
use crate::tokenizer::Tokenizer;

/// To be raised when tokens or files are made in another way.
const FORMAT: u32 = 1;
const MAGIC: [u8; 8] = *b"tt-token";
/// Magic, format, width, rows, ids, hash.
const FOOTER: usize = 8 + 4 + 4 + 8 + 8 + 32;
const BYTES_PER_ROW: usize = 16;
/// So many files at most, of so many rows at least.
const MOST_FILES: u64 = 1000;
const LEAST_ROWS: u64 = 256;
/// What is older than this and not whole is nobody's any more.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 60 * 60);

/// A hash of all that the tokens of a source's rows depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// Of the rows of `source`, of a data set with this `fingerprint`, encoded by `tokenizer` in the manner of `how`.
    ///
    /// Files count by their length and time of change besides what the fingerprint says of them, and not by their names.
    pub fn of(
        source: &dyn Source,
        fingerprint: &str,
        tokenizer: &Tokenizer,
        how: &str,
    ) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(&FORMAT.to_le_bytes());
        add(env!("CARGO_PKG_VERSION").as_bytes());
        add(fingerprint.as_bytes());
        add(&source.num_rows().unwrap_or(u64::MAX).to_le_bytes());
        for path in source.files() {
            let metadata = fs::metadata(&path).map_err(DataError::io(&path))?;
            add(&metadata.len().to_le_bytes());
            add(&metadata.mtime().to_le_bytes());
            add(&metadata.mtime_nsec().to_le_bytes());
        }
        add(&tokenizer.files()["tokenizer.json"]);
        add(&tokenizer.eos_id().to_le_bytes());
        for id in tokenizer.document_start() {
            add(&id.to_le_bytes());
        }
        add(how.as_bytes());
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    fn name(&self) -> String {
        self.0[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The tokens of the rows of one source.
pub struct TokenCache {
    folder: PathBuf,
    key: CacheKey,
    num_rows: u64,
    rows_per_file: u64,
    /// Bytes of an id.
    width: usize,
    files: Vec<Option<TokenFile>>,
}

impl TokenCache {
    /// What there is in `root` of the tokens, each under `vocab_size`, of `num_rows` rows.
    pub fn open(
        root: &Path,
        key: CacheKey,
        num_rows: u64,
        vocab_size: usize,
    ) -> Result<Self, DataError> {
        let rows_per_file = num_rows.div_ceil(MOST_FILES).max(LEAST_ROWS);
        let mut cache = Self {
            folder: root.join(key.name()),
            key,
            num_rows,
            rows_per_file,
            width: if vocab_size <= 1 << 16 { 2 } else { 4 },
            files: Vec::new(),
        };
        mark_used(&cache.folder);
        for file in 0..cache.num_files() {
            let opened = cache.open_file(file)?;
            cache.files.push(opened);
        }
        Ok(cache)
    }

    /// The folder with its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many rows it is of.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Tokens in the files that are there.
    pub fn num_tokens(&self) -> u64 {
        self.files.iter().flatten().map(|it| it.num_ids).sum()
    }

    /// Tokens of `row`; `None` if its file is not there.
    pub fn num_tokens_of(&self, row: u64) -> Option<u64> {
        let file = self.files.get((row / self.rows_per_file) as usize)?;
        let span = file.as_ref()?.span((row % self.rows_per_file) as usize);
        Some(span.end - span.start)
    }

    /// The files that are not there.
    pub fn missing(&self) -> Vec<u64> {
        let files = self.files.iter().zip(0..);
        let missing = files.filter(|(it, _)| it.as_ref().is_none_or(TokenFile::is_damaged));
        missing.map(|(_, file)| file).collect()
    }

    /// The rows of a file.
    pub fn rows(&self, file: u64) -> Range<u64> {
        let start = file * self.rows_per_file;
        start..(start + self.rows_per_file).min(self.num_rows)
    }

    /// Puts the tokens of `row` in the place of `ids`. False if they are not there, or damaged.
    pub fn read(&self, row: u64, ids: &mut Vec<u32>) -> bool {
        let file = (row / self.rows_per_file) as usize;
        let Some(Some(opened)) = self.files.get(file) else {
            return false;
        };
        if opened.is_damaged() {
            return false;
        }
        let is_read = opened.read((row % self.rows_per_file) as usize, self.width, ids);
        if !is_read && !opened.damaged.swap(true, Ordering::Relaxed) {
            // The next run makes it anew.
            let _ = fs::rename(&opened.path, opened.path.with_extension("damaged"));
        }
        is_read
    }

    /// Writes a file; `row` puts the ids of a row in the place of those before, and is called with each row of the file.
    pub fn write(
        &self,
        file: u64,
        mut row: impl FnMut(u64, &mut Vec<u32>) -> Result<(), DataError>,
    ) -> Result<u64, DataError> {
        let folder = &self.folder;
        tt_disk::create_dir(folder).map_err(|error| DataError::io(folder)(error.into()))?;
        let path = self.path(file);
        let temp = tempfile::Builder::new()
            .prefix(PARTIAL)
            .tempfile_in(folder)
            .map_err(DataError::io(folder))?;
        let mut writer = BufWriter::with_capacity(1 << 18, temp);
        let (mut ids, mut index, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        let mut num_ids = 0;
        for number in self.rows(file) {
            ids.clear();
            row(number, &mut ids)?;
            num_ids += ids.len() as u64;
            bytes.clear();
            for id in &ids {
                bytes.extend_from_slice(&id.to_le_bytes()[..self.width]);
            }
            index.extend_from_slice(&num_ids.to_le_bytes());
            index.extend_from_slice(&checksum(&bytes));
            writer.write_all(&bytes).map_err(DataError::io(&path))?;
        }
        let footer = self.footer(file, num_ids, &index);
        let finish = || -> io::Result<()> {
            writer.write_all(&index)?;
            writer.write_all(&footer)?;
            let temp = writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            temp.as_file().sync_all()?;
            temp.persist(&path).map_err(|error| error.error)?;
            Ok(tt_disk::sync_dir(folder)?)
        };
        finish().map_err(DataError::io(&path))?;
        Ok(num_ids)
    }

    /// Removes what builds that were killed have left.
    pub fn clean(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let is_partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
            let changed = entry.metadata().and_then(|it| it.modified());
            let age = changed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
            if is_partial && age.is_ok_and(|age| age > LEFT_BEHIND) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn num_files(&self) -> u64 {
        self.num_rows.div_ceil(self.rows_per_file)
    }

    fn path(&self, file: u64) -> PathBuf {
        self.folder.join(format!("{file:05}.tokens"))
    }

    fn footer(&self, file: u64, num_ids: u64, index: &[u8]) -> Vec<u8> {
        let rows = self.rows(file);
        let mut footer = Vec::with_capacity(FOOTER);
        footer.extend_from_slice(&MAGIC);
        footer.extend_from_slice(&FORMAT.to_le_bytes());
        footer.extend_from_slice(&(self.width as u32).to_le_bytes());
        footer.extend_from_slice(&(rows.end - rows.start).to_le_bytes());
        footer.extend_from_slice(&num_ids.to_le_bytes());
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&rows.start.to_le_bytes());
        hasher.update(&footer);
        hasher.update(index);
        footer.extend_from_slice(hasher.finalize().as_bytes());
        footer
    }

    /// A file, if it is there, whole, and of this cache; one that is not is set aside.
    fn open_file(&self, file: u64) -> Result<Option<TokenFile>, DataError> {
        let path = self.path(file);
        let opened = match File::open(&path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DataError::io(&path)(error)),
        };
        let rows = self.rows(file);
        let rows = (rows.end - rows.start) as usize;
        let index_bytes = rows * BYTES_PER_ROW;
        let len = opened.metadata().map_err(DataError::io(&path))?.len();
        let read = || {
            let data = len.checked_sub((index_bytes + FOOTER) as u64)?;
            let num_ids = data / self.width as u64;
            let mut end = vec![0; index_bytes + FOOTER];
            opened.read_exact_at(&mut end, data).ok()?;
            let (index, footer) = end.split_at(index_bytes);
            if footer != self.footer(file, num_ids, index) || data % self.width as u64 != 0 {
                return None;
            }
            let (entries, _) = index.as_chunks::<BYTES_PER_ROW>();
            let entry = |entry: &[u8; BYTES_PER_ROW]| {
                let (end, sum) = entry.split_at(8);
                let end = end.try_into().map_or(0, u64::from_le_bytes);
                (end, sum.try_into().unwrap_or_default())
            };
            Some((entries.iter().map(entry).collect(), num_ids))
        };
        let Some((rows, num_ids)) = read() else {
            let _ = fs::rename(&path, path.with_extension("damaged"));
            return Ok(None);
        };
        Ok(Some(TokenFile {
            path,
            rows,
            num_ids,
            damaged: AtomicBool::new(false),
        }))
    }
}

pub(crate) const PARTIAL: &str = "partial-";

/// A file that is there.
struct TokenFile {
    path: PathBuf,
    /// Of each row the end of its ids, and their checksum.
    rows: Vec<(u64, [u8; 8])>,
    num_ids: u64,
    damaged: AtomicBool,
}

impl TokenFile {
    fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Where the ids of a row are.
    fn span(&self, row: usize) -> Range<u64> {
        let start = match row {
            0 => 0,
            row => self.rows[row - 1].0,
        };
        start..self.rows[row].0.max(start)
    }

    fn read(&self, row: usize, width: usize, ids: &mut Vec<u32>) -> bool {
        let (_, sum) = self.rows[row];
        let Range { start, end } = self.span(row);
        let mut bytes = vec![0; (end - start) as usize * width];
        // Opened for each row: there may be more files than a process may hold open.
        let file = File::open(&self.path);
        let read = file.and_then(|file| file.read_exact_at(&mut bytes, start * width as u64));
        if read.is_err() || checksum(&bytes) != sum {
            return false;
        }
        ids.clear();
        ids.extend(bytes.chunks_exact(width).map(|id| {
            let mut whole = [0; 4];
            whole[..width].copy_from_slice(id);
            u32::from_le_bytes(whole)
        }));
        true
    }
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let hash = blake3::hash(bytes);
    let mut sum = [0; 8];
    sum.copy_from_slice(&hash.as_bytes()[..8]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_do_not_fit_into_two_bytes_have_four() {
        for (vocab_size, width) in [(1 << 16, 2), ((1 << 16) + 1, 4)] {
            let folder = tempfile::tempdir().unwrap();
            let open =
                || TokenCache::open(folder.path(), CacheKey([7; 32]), 3, vocab_size).unwrap();
            let cache = open();
            assert_eq!(cache.missing(), [0]);
            let of_row = |row: u64| vec![vocab_size as u32 - 1; row as usize];
            let written = cache.write(0, |row, ids| {
                ids.extend(of_row(row));
                Ok(())
            });
            assert_eq!(written.unwrap(), 3);
            let cache = open();
            let mut ids = vec![1];
            for row in 0..3 {
                assert!(cache.read(row, &mut ids));
                assert_eq!(ids, of_row(row));
            }
            let bytes = fs::metadata(cache.path(0)).unwrap().len();
            assert_eq!(bytes as usize, 3 * width + 3 * BYTES_PER_ROW + FOOTER);
            // Of another key or another number of rows it is none of theirs.
            let other = TokenCache::open(folder.path(), CacheKey([7; 32]), 4, vocab_size).unwrap();
            assert_eq!(other.missing(), [0]);
        }
    }
}
