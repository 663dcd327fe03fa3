//! Files that are replaced whole or not at all.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result};

/// Replaces `path` by what `fill` writes: after a kill or a power cut it is the old file or the
/// new one.
pub(crate) fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let mut temp = path.as_os_str().to_owned();
    temp.push(".tmp");
    let temp = PathBuf::from(temp);
    let write = || {
        let mut file = BufWriter::new(File::create(&temp)?);
        fill(&mut file)?;
        file.into_inner()?.sync_all()
    };
    let written = write().map_err(|e| Error::io("write", &temp, e));
    let replaced =
        written.and_then(|()| fs::rename(&temp, path).map_err(|e| Error::io("replace", path, e)));
    if replaced.is_err() {
        let _ = fs::remove_file(&temp); // the first error is the one to report
    }
    replaced?;
    sync_parent(path)
}

/// Makes the name durable, on systems that have the notion.
fn sync_parent(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(|e| Error::io("sync folder", parent, e))?;
    }
    let _ = path;
    Ok(())
}

/// Replaces `path` by a file of these bytes.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Reads a file of JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || Ok(serde_json::from_slice(&fs::read(path)?)?);
    read().map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// Writes `value` as indented JSON, atomically.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    replace(path, |file| {
        serde_json::to_writer_pretty(&mut *file, value)?;
        file.write_all(b"\n")
    })
}
