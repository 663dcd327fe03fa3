//! Data sets of the Hub that training does not wait for: Parquet files are read in parts while they are fetched whole.
//!
//! The footers say all that the order of rows depends on, so the order, and every batch, is that of the files once they are
//! here. What is read in parts is not verified, as only whole files have a hash; what is kept is.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use tt_data::{RemoteFile, RemoteFiles};
use tt_hub::{Hub, Reference, Snapshot, Wait};

use crate::out;

/// Less is fetched before it is read: it is here in no time.
const LEAST_BYTES: u64 = 32 << 20;

/// The files to stream, by their paths in the repository.
pub(super) struct Streamed<'a> {
    files: Vec<&'a str>,
    num_bytes: u64,
    hub: &'a Hub,
    snapshot: &'a Snapshot,
}

impl<'a> Streamed<'a> {
    /// Those of `wanted` that are not here and can be read in parts, if they are many bytes.
    pub(super) fn of(
        wanted: impl Iterator<Item = &'a str>,
        hub: &'a Hub,
        snapshot: &'a Snapshot,
    ) -> Self {
        let is_streamed = |path: &&str| {
            let is_asked = hub.settings().offline.is_none();
            is_asked && path.ends_with(".parquet") && hub.find(snapshot, path).is_none()
        };
        let mut files: Vec<_> = wanted.filter(is_streamed).collect();
        let sizes = files.iter().filter_map(|path| snapshot.file(path));
        let num_bytes = sizes.map(|file| file.size).sum();
        if num_bytes < LEAST_BYTES {
            files.clear();
        }
        Self {
            files,
            num_bytes,
            hub,
            snapshot,
        }
    }

    /// Where one of them will be.
    pub(super) fn place(&self, path: &str) -> Option<PathBuf> {
        let is_streamed = self.files.contains(&path);
        is_streamed.then(|| self.hub.folder(self.snapshot).join(path))
    }

    /// Begins to fetch them, one after another.
    pub(super) fn start(self, reference: &Reference) -> io::Result<RemoteFiles> {
        let mut remotes = RemoteFiles::default();
        if self.files.is_empty() {
            return Ok(remotes);
        }
        let snapshot = Arc::new(self.snapshot.clone());
        for path in &self.files {
            let size = snapshot.file(path).map_or(0, |file| file.size);
            let file = Part {
                hub: self.hub.clone(),
                snapshot: Arc::clone(&snapshot),
                path: (*path).to_owned(),
                size,
            };
            remotes.add(self.hub.folder(&snapshot).join(path), Arc::new(file));
        }
        out::error_line(format_args!(
            "downloading {} files of {reference} ({} MB) while they are read",
            self.files.len(),
            self.num_bytes / 1_000_000
        ));
        let files: Vec<_> = self.files.iter().map(ToString::to_string).collect();
        let (hub, reference) = (self.hub.clone(), reference.clone());
        let fetch = move || {
            for path in files {
                if let Err(error) = hub.download(&snapshot, &path, Wait::QUIET) {
                    out::error_line(format_args!(
                        "warning: {path} of {reference} is not kept here, and read in parts: {error}"
                    ));
                }
            }
        };
        // It ends with the process; what has come by then is gone on with.
        thread::Builder::new()
            .name("download".into())
            .spawn(fetch)?;
        Ok(remotes)
    }
}

/// A file on the Hub.
struct Part {
    hub: Hub,
    snapshot: Arc<Snapshot>,
    path: String,
    size: u64,
}

impl RemoteFile for Part {
    fn num_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let read = self
            .hub
            .read_at(&self.snapshot, &self.path, start, length, Wait::QUIET);
        read.map_err(io::Error::other)
    }
}
