//! `metrics.jsonl`: the record of a run. Everything else that shows metrics reads it, or could.
//!
//! One object a line, in one write, so that a kill leaves at most one line half-written; opening
//! the file to go on drops that line and the rows after the checkpoint.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{error::Result, record::Record};

/// The file `metrics.jsonl` of a run, open at its end.
#[derive(Debug)]
pub struct Jsonl {
    file: File,
    path: PathBuf,
    position: u64,
}

/// What [`Jsonl::resume`] found in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Truncation {
    /// Rows that stay.
    pub rows_kept: u64,
    /// Of steps after the checkpoint: they will be made again.
    pub rows_dropped: u64,
    /// How many steps those are: there may be several rows a step.
    pub steps_dropped: u64,
    /// Half-written or otherwise unreadable: dropped too. More than one means a damaged disk.
    pub rows_damaged: u64,
}

impl Jsonl {
    /// An empty file at `path`, in place of any other.
    pub fn create(path: &Path) -> Result<Self> {
        tt_disk::replace(path, |_| Ok(()))?;
        Self::append(path)
    }

    /// Goes on after `step`, the checkpoint's: keeps the rows up to and including it.
    pub fn resume(path: &Path, step: u64) -> Result<(Self, Truncation)> {
        let truncation = truncate_after(path, step)?;
        Ok((Self::append(path)?, truncation))
    }

    fn append(path: &Path) -> Result<Self> {
        let open = || {
            let file = OpenOptions::new().append(true).create(true).open(path)?;
            let position = file.metadata()?.len();
            Ok((file, position))
        };
        let (file, position) = open().map_err(tt_disk::Error::io("open", path))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            position,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file: where the next row will begin.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Appends a row; on return the system has it, and a kill cannot lose it.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        self.append_line(&record.to_line()?)
    }

    /// The same for the text of a row, which has a key `step` and ends with the end of the line.
    pub(crate) fn append_line(&mut self, line: &str) -> Result<()> {
        if let Err(e) = self.file.write_all(line.as_bytes()) {
            // A full disk may have taken half a line; the rest would be glued to the next row.
            let _ = self.file.set_len(self.position);
            return Err(tt_disk::Error::io("write", &self.path)(e).into());
        }
        self.position += line.len() as u64;
        Ok(())
    }

    /// Makes all rows survive a power cut too. To be called before a checkpoint is written:
    /// resuming from it relies on the rows up to it.
    pub fn sync(&self) -> Result<()> {
        let synced = self.file.sync_data();
        Ok(synced.map_err(tt_disk::Error::io("sync", &self.path))?)
    }
}

/// Drops the rows of steps after `step` and lines that are no rows. No file counts as empty.
fn truncate_after(path: &Path, step: u64) -> Result<Truncation> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Truncation::default()),
        file => file.map_err(tt_disk::Error::io("read", path))?,
    };
    let mut reader = BufReader::new(file);
    let truncation =
        filter(&mut reader, &mut io::sink(), step).map_err(tt_disk::Error::io("read", path))?;
    if truncation.rows_dropped + truncation.rows_damaged > 0 {
        let file = File::open(path).map_err(tt_disk::Error::io("read", path))?;
        tt_disk::replace(path, |out| {
            filter(&mut BufReader::new(file), out, step).map(drop)
        })?;
    }
    Ok(truncation)
}

/// Copies the rows up to `step`, byte by byte as they are.
fn filter(from: &mut impl BufRead, to: &mut impl Write, step: u64) -> io::Result<Truncation> {
    #[derive(Deserialize)]
    struct Row {
        step: u64,
    }
    let mut truncation = Truncation::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        match serde_json::from_slice::<Row>(&line) {
            Ok(row) if line.ends_with(b"\n") && row.step <= step => {
                to.write_all(&line)?;
                truncation.rows_kept += 1;
            }
            Ok(row) if line.ends_with(b"\n") => {
                truncation.rows_dropped += 1;
                truncation.steps_dropped = truncation.steps_dropped.max(row.step - step);
            }
            _ => truncation.rows_damaged += 1,
        }
        line.clear();
    }
    Ok(truncation)
}
