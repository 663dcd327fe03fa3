//! Reading a file that grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A record of millions of rows is read piece by piece.
const MAX_READ_BYTES: u64 = 16 << 20;

/// Whole lines of a file that grows.
pub(super) struct Tail {
    path: PathBuf,
    position: u64,
}

impl Tail {
    pub(super) fn new(path: PathBuf, position: u64) -> Self {
        Self { path, position }
    }

    /// The next that have come, each with the position behind it, up to `end`.
    pub(super) fn lines(&mut self, end: Option<u64>) -> io::Result<Vec<(String, u64)>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let end = end.unwrap_or(file.metadata()?.len());
        if end <= self.position {
            return Ok(Vec::new());
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        let length = (end - self.position).min(MAX_READ_BYTES);
        file.take(length).read_to_end(&mut bytes)?;
        let mut lines = Vec::new();
        let mut position = self.position;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else {
                break;
            };
            position += line.len() as u64 + 1;
            lines.push((String::from_utf8_lossy(line).into_owned(), position));
        }
        self.position = position;
        Ok(lines)
    }
}
