//! A file read on from a place, which no other handle of it moves: handles made of one another share one place.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Reads `file` from `at` on.
pub(super) struct ReadAt<F> {
    pub(super) file: F,
    pub(super) at: u64,
}

impl<F: Borrow<File>> Read for ReadAt<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.borrow().read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
