//! Files and folders that are whole or absent after a kill or a power cut.
//!
//! A file is written under another name, synced and renamed; then the entry in its folder is synced, without which the
//! new name may not be there after the power cut. Only Unix has the notion of the latter, and needs it.
//!
//! ```
//! # let tmp = tempfile::tempdir()?;
//! let folder = tmp.path().join("runs/today");
//! tt_disk::create_dir(&folder)?;
//! tt_disk::write_json(&folder.join("lr.json"), &5e-5)?;
//! assert_eq!(tt_disk::read_json::<f64>(&folder.join("lr.json"))?, 5e-5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Completes "cannot ...": "write", "replace".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// The file cannot be read, or is not what it should be.
    #[error("{}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

impl Error {
    /// What becomes of an error in doing `action` to `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// The cause alone, for errors that name the path themselves.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let (Error::Io { source, .. } | Error::Read { source, .. }) = error;
        source
    }
}

/// Replaces `path` by what `fill` writes: after a kill or a power cut it is the old file or the new one.
pub fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let mut temp = path.as_os_str().to_owned();
    // Two processes may write the same file; each then has its own, and the last to rename wins.
    temp.push(format!(".tmp-{}", std::process::id()));
    let temp = PathBuf::from(temp);
    let write = || {
        let mut file = BufWriter::new(File::create(&temp)?);
        fill(&mut file)?;
        file.into_inner()?.sync_all()
    };
    let replaced = write()
        .map_err(Error::io("write", &temp))
        .and_then(|()| fs::rename(&temp, path).map_err(Error::io("replace", path)));
    if replaced.is_err() {
        let _ = fs::remove_file(&temp); // the first error is the one to report
    }
    replaced?;
    sync_dir(parent(path))
}

/// Replaces `path` by a file of these bytes.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Replaces `path` by `value` as indented JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    replace(path, |file| {
        serde_json::to_writer_pretty(&mut *file, value)?;
        file.write_all(b"\n")
    })
}

/// Reads a file of JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || Ok(serde_json::from_slice(&fs::read(path)?)?);
    read().map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// Makes the folder and those above it that are missing, durably. It may be there already.
pub fn create_dir(dir: &Path) -> Result<()> {
    let missing: Vec<_> = dir
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    fs::create_dir_all(dir).map_err(Error::io("create folder", dir))?;
    missing
        .into_iter()
        .try_for_each(|made| sync_dir(parent(made)))
}

/// Makes the names inside `dir` durable.
pub fn sync_dir(dir: &Path) -> Result<()> {
    #[cfg(unix)]
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync folder", dir))?;
    let _ = dir;
    Ok(())
}

/// The folder that `path` is an entry of.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_json(&path, &[1, 2]).unwrap();
        let failed = replace(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(failed.is_err());
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), [1, 2]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_error_names_the_path_and_keeps_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not.json");
        fs::write(&path, "{").unwrap();
        let error = read_json::<std::collections::BTreeMap<String, u32>>(&path).unwrap_err();
        assert_eq!(error.to_string(), path.display().to_string());
        assert!(io::Error::from(error).to_string().contains("EOF"));
        fs::write(folder.path().join("file"), "").unwrap();
        let error = create_dir(&folder.path().join("file/folder")).unwrap_err();
        assert!(error.to_string().starts_with("cannot create folder "));
    }

    #[test]
    fn folders_are_made_with_all_above_them_and_may_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_dir(&deep).unwrap();
        create_dir(&deep).unwrap();
        assert!(deep.is_dir());
    }
}
