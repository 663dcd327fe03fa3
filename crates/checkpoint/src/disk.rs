//! Writing files so that they survive a power cut, and so that names never lie.
//!
//! A file counts as written once its bytes and its folder's entry are both synced. Everything
//! is written in a folder that readers ignore, then renamed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    manifest::FileEntry,
};

/// Large enough that a tensor passes through in a few calls, and that BLAKE3 hashes at full width.
const BUFFER_BYTES: usize = 1 << 20;

/// A new file whose size and checksum are taken while its bytes pass.
pub(crate) struct HashedFile {
    inner: BufWriter<Hashed>,
    path: PathBuf,
}

struct Hashed {
    file: File,
    hasher: blake3::Hasher,
    num_bytes: u64,
}

impl Write for Hashed {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write(data)?;
        self.hasher.update(&data[..written]);
        self.num_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl HashedFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|e| Error::io("create", path, e))?;
        Ok(Self {
            inner: BufWriter::with_capacity(
                BUFFER_BYTES,
                Hashed {
                    file,
                    hasher: blake3::Hasher::new(),
                    num_bytes: 0,
                },
            ),
            path: path.to_owned(),
        })
    }

    pub(crate) fn write_all(&mut self, data: &[u8]) -> Result<()> {
        self.inner
            .write_all(data)
            .map_err(|e| Error::io("write", &self.path, e))
    }

    /// Returns the file's entry in the manifest under `name`. It is durable after [`sync_files`] only.
    pub(crate) fn finish(mut self, name: impl Into<String>) -> Result<FileEntry> {
        let wrap = |e| Error::io("write", &self.path, e);
        self.inner.flush().map_err(wrap)?;
        let done = self.inner.get_ref();
        Ok(FileEntry {
            path: name.into(),
            bytes: done.num_bytes,
            blake3: done.hasher.finalize().to_hex().to_string(),
        })
    }
}

/// Makes the bytes of `files` of `dir` durable: together at the end, so that who hands over the data of the one need not
/// wait for the disk to have the other.
pub(crate) fn sync_files(dir: &Path, files: &[FileEntry]) -> Result<()> {
    for file in files {
        let path = dir.join(&file.path);
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(())
}

/// Writes `data` to `dir/name`.
pub(crate) fn write_file(dir: &Path, name: &str, data: &[u8]) -> Result<FileEntry> {
    let mut file = HashedFile::create(&dir.join(name))?;
    file.write_all(data)?;
    file.finish(name)
}

/// Copies `from` to `dir/name`.
pub(crate) fn copy_file(from: &Path, dir: &Path, name: &str) -> Result<FileEntry> {
    let mut source = File::open(from).map_err(|e| Error::io("read", from, e))?;
    let mut file = HashedFile::create(&dir.join(name))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return file.finish(name),
            Ok(n) => file.write_all(&buffer[..n])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("read", from, e)),
        }
    }
}

/// The BLAKE3 checksum of a file as lower-case hex.
pub(crate) fn checksum(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().to_hex().to_string()),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
    }
}

pub(crate) fn create_dir(dir: &Path) -> Result<()> {
    Ok(tt_disk::create_dir(dir)?)
}

/// Makes the names inside `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    Ok(tt_disk::sync_dir(dir)?)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| {
        let name = to.file_name().unwrap_or(to.as_os_str()).display();
        Error::io(format!("give the name {name} to"), from, e)
    })
}

pub(crate) fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", dir, e)),
        _ => Ok(()),
    }
}
