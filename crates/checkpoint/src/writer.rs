//! Writes snapshots on a background thread, one at a time, so that a kill or a power cut at any
//! instant leaves only complete checkpoints under final names.
//!
//! The thread that has the tensors reads them into buffers, the background thread writes these: no tensor is copied as a
//! whole, and [`write_window_bytes`](crate::write_window_bytes) of memory are the most that it takes.
//!
//! Order of events: files into `.tmp-step-N-PID`, each synced; `manifest.json`, synced; the
//! folder, synced; rename to `step-N`; the parent folder, synced. A checkpoint of the same step
//! that exists already is swapped for the new one in one step where the system can.

use std::{
    any::Any,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    config::CheckpointConfig,
    data_file::Data,
    disk,
    error::{Error, Result},
    hold::{Hold, Holds},
    layout::{Outline, Snapshot},
    manifest::Manifest,
    retention::{self, step_dir_name},
    source::TensorSource,
    stream, sys,
};

/// Holds the checkpoint folder for one process. Dropping it waits for the write under way;
/// [`Writer::finish`] also tells how it went.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    config: CheckpointConfig,
    held: Holds,
    in_flight: Option<JoinHandle<Result<Saved>>>,
    /// Released by the system however the process ends. None where folders cannot be locked.
    _lock: Option<File>,
}

/// A checkpoint that is complete and durable.
#[derive(Debug)]
pub struct Saved {
    /// Steps done when it was written.
    pub step: u64,
    /// Its folder.
    pub dir: PathBuf,
    /// Of all files together, the manifest left out.
    pub num_bytes: u64,
    /// How long writing took, in the background.
    pub duration: Duration,
    /// Older checkpoints that were not to be kept.
    pub removed: Vec<PathBuf>,
    /// Why removing older ones failed, if it did; the checkpoint itself is good.
    pub removal_error: Option<Error>,
}

impl Writer {
    /// Creates `dir` if need be, takes it for this process, and tidies up after one that was
    /// killed: a checkpoint that lacked only its final name gets it, other remains are removed.
    ///
    /// `InUse` if another process has it: to be opened before anything of a run is touched.
    pub fn open(dir: impl Into<PathBuf>, config: CheckpointConfig) -> Result<Self> {
        let dir = dir.into();
        disk::create_dir(&dir)?;
        let lock = lock(&dir)?;
        end_what_was_begun(&dir)?;
        Ok(Self {
            dir,
            config,
            held: Holds::default(),
            in_flight: None,
            _lock: lock,
        })
    }

    /// The folder that checkpoints are written to.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts to write `snapshot`. If the one before is still being written, waits for it first.
    ///
    /// Returns when the last of the tensors' bytes is on its way: at once if they fit the window, else at the speed of
    /// the disk for what does not. The tensors may then change.
    ///
    /// Returns what became of the one before. If that failed, `snapshot` is not written. Error: a tensor of `snapshot`
    /// could not be read.
    pub fn submit<T: TensorSource>(&mut self, snapshot: Snapshot<T>) -> Result<Option<Saved>> {
        let before = self.wait()?;
        let (outline, tensors) = snapshot.split(self.config.max_shard_bytes.get());
        let (outgoing, mut incoming) = stream::channel(outline.num_bytes());
        let (dir, config, held) = (self.dir.clone(), self.config.clone(), self.held.clone());
        let handle = thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || save(&dir, &config, &held, &outline, &mut incoming))
            .map_err(|e| Error::io("start a thread to write", &self.dir, e))?;
        self.in_flight = Some(handle);
        if let Err(unreadable) = outgoing.send(tensors) {
            // The thread failed for want of this tensor.
            let _ = self.wait();
            return Err(unreadable);
        }
        Ok(before)
    }

    /// Keeps the checkpoint of `step` while somebody reads it. To be called before the next is submitted, which may be
    /// what it has to make room for.
    pub fn hold(&self, step: u64) -> Hold {
        self.held.hold(step)
    }

    /// Whether a write is under way.
    pub fn is_busy(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|h| !h.is_finished())
    }

    /// What became of the last submitted snapshot, once: `None` while it is being written, or
    /// when this was told already.
    pub fn poll(&mut self) -> Result<Option<Saved>> {
        if self.is_busy() {
            return Ok(None);
        }
        self.wait()
    }

    /// [`Writer::poll`], but waits for a write under way.
    pub fn wait(&mut self) -> Result<Option<Saved>> {
        let Some(handle) = self.in_flight.take() else {
            return Ok(None);
        };
        match handle.join() {
            Ok(outcome) => outcome.map(Some),
            Err(panic) => Err(Error::WriterPanicked(panic_message(&*panic))),
        }
    }

    /// Waits for the write under way and gives the folder up.
    pub fn finish(mut self) -> Result<Option<Saved>> {
        self.wait()
    }
}

/// Reads the tensors of `snapshot` as a [`Writer`] reads them, in the same pieces and order, and keeps nothing: what ranks do
/// that have parts of the tensors, while the first of them writes. Error: a tensor could not be read.
pub fn read_along<T: TensorSource>(snapshot: Snapshot<T>, config: &CheckpointConfig) -> Result<()> {
    let (outline, tensors) = snapshot.split(config.max_shard_bytes.get());
    let (outgoing, incoming) = stream::channel(outline.num_bytes());
    thread::scope(|scope| {
        scope.spawn(|| incoming.discard());
        outgoing.send(tensors)
    })
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error here has nobody left to go to; what is on disk is whole either way.
        let _ = self.wait();
    }
}

fn save(
    dir: &Path,
    config: &CheckpointConfig,
    held: &Holds,
    outline: &Outline,
    data: &mut dyn Data,
) -> Result<Saved> {
    let start = Instant::now();
    let step = outline.step;
    let temp = dir.join(format!(
        ".tmp-{}-{}",
        step_dir_name(step),
        std::process::id()
    ));
    let written = write(&temp, outline, data)
        .and_then(|num_bytes| Ok((num_bytes, publish(&temp, dir, step)?)));
    let (num_bytes, path) = match written {
        Ok(done) => done,
        Err(error) => {
            // The first error is the one to report, whatever becomes of the remains.
            let _ = disk::remove_dir(&temp);
            return Err(if error.is_disk_full() {
                Error::DiskFull {
                    path: dir.join(step_dir_name(step)),
                    needed_bytes: outline.num_bytes(),
                    available_bytes: sys::available_bytes(dir),
                }
            } else {
                error
            });
        }
    };
    let (removed, removal_error) = match retention::prune(dir, config, held, step) {
        Ok(removed) => (removed, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    Ok(Saved {
        step,
        dir: path,
        num_bytes,
        duration: start.elapsed(),
        removed,
        removal_error,
    })
}

/// A complete and durable checkpoint in the folder `temp`; returns its size.
fn write(temp: &Path, outline: &Outline, data: &mut dyn Data) -> Result<u64> {
    disk::remove_dir(temp)?;
    disk::create_dir(temp)?;
    let files = outline.write(temp, data)?;
    let num_bytes = files.iter().map(|f| f.bytes).sum();
    Manifest::new(outline.step, files).write(temp)?;
    disk::sync_dir(temp)?;
    Ok(num_bytes)
}

/// Gives the complete checkpoint `temp` its final name in `dir`.
fn publish(temp: &Path, dir: &Path, step: u64) -> Result<PathBuf> {
    let path = dir.join(step_dir_name(step));
    if path.symlink_metadata().is_err() {
        disk::rename(temp, &path)?;
        disk::sync_dir(dir)?;
        return Ok(path);
    }
    match sys::exchange(temp, &path) {
        Ok(()) => {
            disk::sync_dir(dir)?;
            disk::remove_dir(temp)?; // now holds the one replaced
        }
        Err(e) if e.kind() == io::ErrorKind::Unsupported => replace_in_two_steps(temp, &path)?,
        Err(e) => return Err(Error::io("replace", &path, e)),
    }
    Ok(path)
}

/// Where names cannot be exchanged. Killed between the renames, no folder has the final name,
/// but both are complete: [`recover`] gives it to the new one.
fn replace_in_two_steps(temp: &Path, path: &Path) -> Result<()> {
    let old = retention::trash_for(path);
    disk::remove_dir(&old)?;
    disk::rename(path, &old)?;
    disk::rename(temp, path)?;
    if let Some(dir) = path.parent() {
        disk::sync_dir(dir)?;
    }
    disk::remove_dir(&old)
}

/// Ends what a killed process began in `dir`, as [`Writer::open`] does: to be called before the newest checkpoint is looked
/// for, which may lack only its final name. Nothing if there is no such folder.
///
/// `InUse` if another process has it.
pub fn recover(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    let _lock = lock(dir)?;
    end_what_was_begun(dir)
}

/// What is complete and has no other copy gets its final name, all else goes. Only for the holder of the lock.
fn end_what_was_begun(dir: &Path) -> Result<()> {
    let mut names = retention::entry_names(dir)?;
    names.sort();
    // Backwards, so that a new checkpoint (`.tmp-`) goes before the one it was to replace (`.old-`).
    for name in names.iter().rev() {
        if !name.starts_with(".tmp-step-") && !name.starts_with(".old-step-") {
            continue;
        }
        let path = dir.join(name);
        match Manifest::verify(&path) {
            Ok(manifest) if !dir.join(step_dir_name(manifest.step)).exists() => {
                publish(&path, dir, manifest.step)?;
            }
            Ok(_) | Err(Error::Damaged(_)) => disk::remove_dir(&path)?,
            Err(unreadable) => return Err(unreadable),
        }
    }
    Ok(())
}

/// An exclusive lock on the folder itself: no file of ours is left lying in it.
fn lock(dir: &Path) -> Result<Option<File>> {
    // Not every system opens folders, nor every file system locks them; there, two runs in one
    // folder go unnoticed, which is what happens everywhere without a lock.
    let Ok(file) = File::open(dir) else {
        return Ok(None);
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(Error::InUse {
            dir: dir.to_owned(),
        }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{data_file::InPlace, layout};

    /// A complete checkpoint in `dir/name`, told apart by its state.
    fn complete(dir: &Path, name: &str, step: u64, state: &str) -> PathBuf {
        let snapshot = <Snapshot>::default();
        let (outline, tensors) = Snapshot {
            step,
            state: state.into(),
            ..snapshot
        }
        .split(u64::MAX);
        let path = dir.join(name);
        write(&path, &outline, &mut InPlace::new(tensors)).unwrap();
        path
    }

    fn state_of(dir: &Path) -> String {
        let text = fs::read_to_string(dir.join(layout::STATE)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn two_renames_replace_where_names_cannot_be_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = complete(dir.path(), "step-00000005", 5, "old");
        let temp = complete(dir.path(), ".tmp-step-00000005-1", 5, "new");
        replace_in_two_steps(&temp, &path).unwrap();
        assert_eq!(state_of(&path), "new");
        assert_eq!(
            retention::entry_names(dir.path()).unwrap(),
            ["step-00000005"]
        );
    }

    #[test]
    fn kill_between_the_two_renames_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        complete(dir.path(), ".old-step-00000005", 5, "old");
        complete(dir.path(), ".tmp-step-00000005-1", 5, "new");
        recover(dir.path()).unwrap();
        assert_eq!(state_of(&dir.path().join("step-00000005")), "new");
        assert_eq!(
            retention::entry_names(dir.path()).unwrap(),
            ["step-00000005"]
        );
    }

    #[test]
    fn old_one_comes_back_if_the_new_one_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        complete(dir.path(), ".old-step-00000005", 5, "old");
        let temp = complete(dir.path(), ".tmp-step-00000005-1", 5, "new");
        fs::remove_file(temp.join(layout::CONFIG)).unwrap();
        recover(dir.path()).unwrap();
        assert_eq!(state_of(&dir.path().join("step-00000005")), "old");
        assert_eq!(
            retention::entry_names(dir.path()).unwrap(),
            ["step-00000005"]
        );
    }

    #[test]
    fn a_checkpoint_that_cannot_be_replaced_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = complete(dir.path(), "step-00000005", 5, "old");
        let absent = dir.path().join(".tmp-step-00000005-1");
        publish(&absent, dir.path(), 5).unwrap_err();
        assert_eq!(state_of(&path), "old");
    }

    #[test]
    fn a_write_under_way_is_not_waited_for_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), CheckpointConfig::default()).unwrap();
        assert!(!writer.is_busy());
        let (go_on, wait) = std::sync::mpsc::channel();
        writer.in_flight = Some(thread::spawn(move || {
            wait.recv().unwrap();
            Err(Error::WriterPanicked("ended".to_owned()))
        }));
        assert!(writer.is_busy());
        assert!(writer.poll().unwrap().is_none());
        go_on.send(()).unwrap();
        while writer.is_busy() {
            thread::yield_now();
        }
        assert!(writer.poll().is_err());
        assert!(writer.poll().unwrap().is_none());
    }

    #[test]
    fn panic_of_the_thread_is_an_error_with_its_message() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), CheckpointConfig::default()).unwrap();
        writer.in_flight = Some(thread::spawn(|| panic!("step {}", 7)));
        let error = writer.wait().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the checkpoint writer stopped with a panic: step 7"
        );
    }
}
