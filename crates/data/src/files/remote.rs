//! Files that are on their way to this machine, and read in parts until they are here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What is asked for at once, and how many of these are kept for all files together: pages are read one after another, a
/// little at a time, from several columns in turn.
const PART_BYTES: u64 = 1 << 20;
const MAX_PARTS: usize = 64;
/// Files whose ends are asked for at the same time.
pub(super) const AT_ONCE: usize = 16;

/// A file somewhere else.
pub trait RemoteFile: Send + Sync {
    /// Of the whole.
    fn num_bytes(&self) -> u64;

    /// `length` bytes from `start` on. May take as long as the line is broken.
    fn read_at(&self, start: u64, length: usize) -> io::Result<Vec<u8>>;
}

/// Files that may be read before they are here, by the paths at which they will be, whole and at once.
#[derive(Clone, Default)]
pub struct RemoteFiles {
    files: BTreeMap<PathBuf, Arc<dyn RemoteFile>>,
    parts: Arc<Parts>,
}

impl RemoteFiles {
    /// Adds one.
    pub fn add(&mut self, path: PathBuf, file: Arc<dyn RemoteFile>) {
        self.files.insert(path, file);
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
    }

    /// Asks for the beginnings and the ends of `paths`, [`AT_ONCE`] or fewer, all at the same time: one after another, many
    /// files would take long to open. What goes wrong shows when they are read.
    pub(super) fn reach(&self, paths: &[PathBuf]) {
        std::thread::scope(|scope| {
            for path in paths.iter().filter(|path| self.contains(path)) {
                scope.spawn(move || {
                    if let Ok(file) = PlacedFile::open(path, self) {
                        let mut byte = [0];
                        let _ = file.read_at(&mut byte, 0);
                        let _ = file.read_at(&mut byte, file.num_bytes().saturating_sub(1));
                    }
                });
            }
        });
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }
}

/// What is on its way makes no other data.
impl PartialEq for RemoteFiles {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for RemoteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

/// The parts used last, of whichever files; those used last stand last.
#[derive(Default)]
struct Parts(Mutex<Vec<Part>>);

struct Part {
    path: Arc<Path>,
    index: u64,
    bytes: Arc<Vec<u8>>,
}

impl Parts {
    fn get(
        &self,
        path: &Arc<Path>,
        index: u64,
        read: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<Arc<Vec<u8>>> {
        // Parts are put there whole, so a panic of another worker leaves nothing half made.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = lock();
        let is_it = |part: &Part| part.index == index && part.path == *path;
        let part = match parts.iter().position(is_it) {
            Some(at) => parts.remove(at),
            None => {
                drop(parts);
                let bytes = Arc::new(read()?);
                parts = lock();
                Part {
                    path: Arc::clone(path),
                    index,
                    bytes,
                }
            }
        };
        let bytes = Arc::clone(&part.bytes);
        if parts.len() >= MAX_PARTS {
            parts.remove(0);
        }
        parts.push(part);
        Ok(bytes)
    }
}

/// A file that is read at places, here or on its way.
#[derive(Clone)]
pub(super) struct PlacedFile {
    path: Arc<Path>,
    num_bytes: u64,
    here: Arc<OnceLock<File>>,
    remote: Option<(Arc<dyn RemoteFile>, Arc<Parts>)>,
}

impl PlacedFile {
    pub(super) fn open(path: &Path, remotes: &RemoteFiles) -> io::Result<Self> {
        let mut file = Self {
            path: Arc::from(path),
            num_bytes: 0,
            here: Arc::default(),
            remote: None,
        };
        file.num_bytes = match remotes.files.get(path) {
            Some(remote) => {
                file.remote = Some((Arc::clone(remote), Arc::clone(&remotes.parts)));
                remote.num_bytes()
            }
            None => {
                let opened = File::open(path)?;
                let num_bytes = opened.metadata()?.len();
                file.here = Arc::new(OnceLock::from(opened));
                num_bytes
            }
        };
        Ok(file)
    }

    pub(super) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// The file itself, once it is here.
    fn here(&self) -> Option<&File> {
        if self.here.get().is_none()
            && let Ok(file) = File::open(&self.path)
        {
            let _ = self.here.set(file); // another worker may have been first, with the same file
        }
        self.here.get()
    }

    /// At most as many bytes as `bytes` has room for, from `start` on; none at the end.
    pub(super) fn read_at(&self, bytes: &mut [u8], start: u64) -> io::Result<usize> {
        if let Some(file) = self.here() {
            return file.read_at(bytes, start);
        }
        let Some((remote, parts)) = &self.remote else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if start >= self.num_bytes {
            return Ok(0);
        }
        let index = start / PART_BYTES;
        let first = index * PART_BYTES;
        let length = PART_BYTES.min(self.num_bytes - first) as usize;
        let part = parts.get(&self.path, index, || remote.read_at(first, length))?;
        let rest = &part[(start - first) as usize..];
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    pub(super) fn read_exact_at(&self, mut bytes: &mut [u8], mut start: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.read_at(bytes, start)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            start += count as u64;
            bytes = &mut bytes[count..];
        }
        Ok(())
    }
}

/// Reads a file on from a place.
pub(super) struct ReadOn {
    pub(super) file: PlacedFile,
    pub(super) at: u64,
}

impl io::Read for ReadOn {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Counted {
        content: Vec<u8>,
        asked: AtomicU64,
    }

    impl RemoteFile for Counted {
        fn num_bytes(&self) -> u64 {
            self.content.len() as u64
        }

        fn read_at(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let start = start as usize;
            Ok(self.content[start..start + length].to_vec())
        }
    }

    #[test]
    fn a_file_is_read_in_parts_until_it_is_here() {
        let content: Vec<u8> = (0..2 * PART_BYTES + 10)
            .map(|at| (at % 251) as u8)
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let remote = Arc::new(Counted {
            content: content.clone(),
            asked: AtomicU64::new(0),
        });
        let mut remotes = RemoteFiles::default();
        remotes.add(path.clone(), remote.clone());
        let file = PlacedFile::open(&path, &remotes).unwrap();
        let read = |start: u64, length: usize| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, start).map(|()| bytes)
        };
        let over_an_edge = PART_BYTES - 5;
        for _ in 0..3 {
            let place = over_an_edge as usize;
            assert_eq!(read(over_an_edge, 10).unwrap(), content[place..place + 10]);
        }
        assert_eq!(remote.asked.load(Ordering::SeqCst), 2);
        assert_eq!(
            read(2 * PART_BYTES, 10).unwrap(),
            content[content.len() - 10..]
        );
        let past_the_end = read(2 * PART_BYTES + 5, 10).unwrap_err();
        assert_eq!(past_the_end.kind(), io::ErrorKind::UnexpectedEof);
        let asked = remote.asked.load(Ordering::SeqCst);
        std::fs::write(&path, &content).unwrap();
        assert_eq!(read(0, content.len()).unwrap(), content);
        assert_eq!(remote.asked.load(Ordering::SeqCst), asked);
    }
}
