//! `manifest.json`: what a complete checkpoint holds. Written last, read first.
//!
//! A folder without one, or whose files differ from it in size or content, is not a checkpoint.
//! Files that it does not list are nobody's business: a user may drop a README beside the weights.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    disk,
    error::{Damage, Problem, Result},
};

pub(crate) const FILE_NAME: &str = "manifest.json";
const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    pub step: u64,
    pub files: Vec<FileEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Relative to the checkpoint folder, with `/` between parts.
    pub path: String,
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
        disk::write_file(dir, FILE_NAME, &to_json(self)).map(drop)
    }

    /// Reads the manifest of `dir` and checks that every file is there in its full size.
    /// Touches no file's content: cheap.
    pub(crate) fn read(dir: &Path) -> Result<Self, Damage> {
        let damage = |problem| Damage {
            dir: dir.to_owned(),
            problem,
        };
        let text = fs::read(dir.join(FILE_NAME)).map_err(|e| {
            damage(match e.kind() {
                io::ErrorKind::NotFound => Problem::NoManifest,
                _ => Problem::ManifestUnreadable(e.to_string()),
            })
        })?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|e| damage(Problem::ManifestUnreadable(e.to_string())))?;
        if manifest.format != FORMAT {
            return Err(damage(Problem::ManifestUnreadable(format!(
                "format {} is not known to this version, which reads format {FORMAT}",
                manifest.format
            ))));
        }
        for entry in &manifest.files {
            let file = entry.path.clone();
            let actual_bytes = match fs::metadata(dir.join(&file)) {
                Ok(meta) => meta.len(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Err(damage(Problem::FileMissing(file)));
                }
                Err(e) => return Err(damage(Problem::FileUnreadable(file, e.to_string()))),
            };
            if actual_bytes != entry.bytes {
                return Err(damage(Problem::WrongSize {
                    file,
                    expected_bytes: entry.bytes,
                    actual_bytes,
                }));
            }
        }
        Ok(manifest)
    }

    /// [`Manifest::read`], then the checksum of every file: reads the whole checkpoint.
    pub(crate) fn verify(dir: &Path) -> Result<Self, Damage> {
        let manifest = Self::read(dir)?;
        for entry in &manifest.files {
            let problem = match disk::checksum(&dir.join(&entry.path)) {
                Ok(sum) if sum == entry.blake3 => continue,
                Ok(_) => Problem::WrongChecksum(entry.path.clone()),
                Err(e) => Problem::FileUnreadable(entry.path.clone(), e.to_string()),
            };
            return Err(Damage {
                dir: dir.to_owned(),
                problem,
            });
        }
        Ok(manifest)
    }
}

/// Indented JSON with a final newline: people read and diff these files.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("string keys and no failing Serialize");
    text.push(b'\n');
    text
}
