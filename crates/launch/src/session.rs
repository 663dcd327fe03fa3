//! The folder that a supervisor and its worker share, while they are at work.
//!
//! ```text
//! $TMPDIR/tpu-train-session-a1b2c3/
//!   lock           held by the supervisor
//!   emulator/      the emulator's copies of the kernels, which it leaves behind
//!   flight         what was asked of the device: see `tt_tpu::flight`
//!   device.log     what the device's libraries print, until the worker knows its run folder; then it is there
//!   run            where in that log this session begins, a space, and the path of the run folder
//!   ended          its exit code, once the worker has done what it was asked for
//!   rank-1/        the same for another rank than the first, where a run has several
//! ```
//!
//! It is on a local disk rather than in the run folder, which often is not: the record is written at every launch. The
//! supervisor removes it, and the folders of supervisors that were killed: their locks are free.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// What the device's libraries print, in the run folder.
pub(crate) const DEVICE_LOG: &str = "device.log";

const PREFIX: &str = "tpu-train-session-";

/// Where things are in the folder.
#[derive(Clone, Debug)]
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// Those of a rank of the run: the first has the folder itself.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        match rank {
            0 => self.clone(),
            rank => Self(self.0.join(format!("rank-{rank}"))),
        }
    }

    pub(crate) fn emulator(&self) -> PathBuf {
        self.0.join("emulator")
    }

    pub(crate) fn flight(&self) -> PathBuf {
        self.0.join("flight")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join(DEVICE_LOG)
    }

    fn exit_code_file(&self) -> PathBuf {
        self.0.join("ended")
    }

    /// Says that the worker has done what it was asked for, and ends with this code.
    pub(crate) fn set_exit_code(&self, code: u8) -> io::Result<()> {
        fs::write(self.exit_code_file(), code.to_string())
    }

    pub(crate) fn exit_code(&self) -> Option<u8> {
        fs::read_to_string(self.exit_code_file()).ok()?.parse().ok()
    }

    fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn run_file(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Says that the worker has taken `run`, in whose log this session begins at byte `log_start`.
    pub(crate) fn set_run(&self, run: &Path, log_start: u64) -> io::Result<()> {
        let mut text = format!("{log_start} ").into_bytes();
        text.extend(run.as_os_str().as_bytes());
        fs::write(self.run_file(), text)
    }

    fn read_run(&self) -> Option<(u64, PathBuf)> {
        let bytes = fs::read(self.run_file()).ok()?;
        let space = bytes.iter().position(|&byte| byte == b' ')?;
        let log_start = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let run = OsString::from_vec(bytes[space + 1..].to_vec());
        Some((log_start, run.into()))
    }

    /// The run folder that the worker has taken, if it has.
    pub(crate) fn run(&self) -> Option<PathBuf> {
        self.read_run().map(|(_, run)| run)
    }

    /// Where the device's log is, and the byte at which this session begins in it.
    pub(crate) fn log_now(&self) -> (PathBuf, u64) {
        match self.read_run() {
            Some((start, run)) => (run.join(DEVICE_LOG), start),
            None => (self.log(), 0),
        }
    }
}

/// The supervisor's side: removed when dropped.
#[derive(Debug)]
pub(crate) struct Session {
    files: Files,
    num_ranks: usize,
    _lock: File,
}

impl Session {
    /// For the workers of so many ranks.
    pub(crate) fn create(num_ranks: usize) -> Result<Self> {
        Self::create_in(&std::env::temp_dir(), num_ranks)
    }

    fn create_in(parent: &Path, num_ranks: usize) -> Result<Self> {
        remove_stale(parent);
        Self::try_create(parent, num_ranks).map_err(|source| Error::Session {
            parent: parent.to_owned(),
            source,
        })
    }

    fn try_create(parent: &Path, num_ranks: usize) -> io::Result<Self> {
        // Under the name that others look for only once it is locked.
        let hidden = tempfile::Builder::new()
            .prefix(&format!(".{PREFIX}"))
            .tempdir_in(parent)?;
        let hidden_files = Files(hidden.path().to_owned());
        let lock = File::create(hidden_files.lock())?;
        lock.lock()?;
        for rank in 0..num_ranks {
            fs::create_dir_all(hidden_files.of_rank(rank).emulator())?;
        }
        let name = hidden.path().file_name().unwrap_or_default().as_bytes();
        let folder = parent.join(OsStr::from_bytes(&name[1..]));
        fs::rename(hidden.keep(), &folder)?;
        Ok(Self {
            files: Files(folder),
            num_ranks,
            _lock: lock,
        })
    }

    /// Those of the first rank, which speaks for all.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Those of each rank.
    pub(crate) fn of_ranks(&self) -> impl Iterator<Item = Files> {
        (0..self.num_ranks).map(|rank| self.files.of_rank(rank))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The next supervisor tries again.
        let _ = fs::remove_dir_all(&self.files.0);
    }
}

/// Removes the folders of supervisors that are no more. One that cannot be removed is another user's.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_session = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
        let folder = Files(entry.path());
        if is_session && is_free(&folder.lock()) {
            let _ = fs::remove_dir_all(&folder.0);
        }
    }
}

fn is_free(lock: &Path) -> bool {
    match File::open(lock) {
        Ok(lock) => lock.try_lock().is_ok(),
        // Half removed.
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let session = Session::create_in(parent.path(), 2).unwrap();
        assert!(session.of_ranks().all(|files| files.emulator().exists()));
        fs::write(session.files().emulator().join("module.so"), "").unwrap();
        drop(session);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_killed_supervisors_left_is_removed_and_what_is_in_use_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let stale = parent.path().join("tpu-train-session-stale");
        fs::create_dir_all(stale.join("emulator/17-0")).unwrap();
        fs::write(stale.join("lock"), "").unwrap();
        let other = parent.path().join("tpu-train-other");
        fs::create_dir(&other).unwrap();

        let first = Session::create_in(parent.path(), 1).unwrap();
        let second = Session::create_in(parent.path(), 1).unwrap();
        assert!(!stale.exists());
        assert!(other.exists());
        assert!(first.files().emulator().exists());
        drop((first, second));
    }

    #[test]
    fn the_run_folder_reads_back() {
        let parent = tempfile::tempdir().unwrap();
        let session = Session::create_in(parent.path(), 1).unwrap();
        let files = session.files();
        assert_eq!(files.log_now(), (files.log(), 0));
        files.set_run(Path::new("/a run"), 17).unwrap();
        assert_eq!(files.run().as_deref(), Some(Path::new("/a run")));
        assert_eq!(files.log_now(), ("/a run/device.log".into(), 17));
    }
}
