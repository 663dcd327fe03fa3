//! `manifest.json`: what a complete checkpoint holds. Written last, read first.
//!
//! A folder without one, or whose files differ from it in size or content, is not a checkpoint.
//! Files that it does not list are nobody's business: a user may drop a README beside the weights.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    disk,
    error::{Damage, Error, Problem, Result},
};

pub(crate) const FILE_NAME: &str = "manifest.json";
const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    /// Steps done when it was written.
    pub step: u64,
    /// The files that it is of.
    pub files: Vec<FileEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Relative to the checkpoint folder, with `/` between parts.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Lower-case hex, as `b3sum` prints it.
    pub blake3: String,
}

impl Manifest {
    pub(crate) fn new(step: u64, files: Vec<FileEntry>) -> Self {
        Self {
            format: FORMAT,
            step,
            files,
        }
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let file = disk::write_file(dir, FILE_NAME, &to_json(self))?;
        disk::sync_files(dir, &[file])
    }

    /// Reads the manifest of `dir` and checks that every file is there in its full size.
    /// Touches no file's content: cheap.
    ///
    /// A file that cannot be read is an I/O error and says nothing about the checkpoint: it may be
    /// whole. Only what was read and found wrong is [`Damage`].
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(damage(dir, Problem::NoManifest));
            }
            text => text.map_err(|e| Error::io("read", &path, e))?,
        };
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|e| damage(dir, Problem::ManifestUnreadable(e.to_string())))?;
        if manifest.format != FORMAT {
            let reason = format!(
                "format {} is not known to this version, which reads format {FORMAT}",
                manifest.format
            );
            return Err(damage(dir, Problem::ManifestUnreadable(reason)));
        }
        for entry in &manifest.files {
            let file = entry.path.clone();
            let path = dir.join(&file);
            let actual_bytes = match fs::metadata(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Err(damage(dir, Problem::FileMissing(file)));
                }
                meta => meta.map_err(|e| Error::io("read", &path, e))?.len(),
            };
            if actual_bytes != entry.bytes {
                let problem = Problem::WrongSize {
                    file,
                    expected_bytes: entry.bytes,
                    actual_bytes,
                };
                return Err(damage(dir, problem));
            }
        }
        Ok(manifest)
    }

    /// [`Manifest::read`], then the checksum of every file: reads the whole checkpoint.
    pub(crate) fn verify(dir: &Path) -> Result<Self> {
        let manifest = Self::read(dir)?;
        for entry in &manifest.files {
            let path = dir.join(&entry.path);
            let sum = disk::checksum(&path).map_err(|e| Error::io("read", &path, e))?;
            if sum != entry.blake3 {
                return Err(damage(dir, Problem::WrongChecksum(entry.path.clone())));
            }
        }
        Ok(manifest)
    }
}

fn damage(dir: &Path, problem: Problem) -> Error {
    let dir = dir.to_owned();
    Error::Damaged(Damage { dir, problem })
}

/// Indented JSON with a final newline: people read and diff these files.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("string keys and no failing Serialize");
    text.push(b'\n');
    text
}
