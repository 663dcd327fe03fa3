//! The logs of a run on disk: one for each process that has worked on it.
//!
//! ```text
//! wandb/
//!   run-20261127_215356-k3v8x0qa/          offline-run-... if it was not meant to be sent at once
//!     run-k3v8x0qa.wandb                   the log
//!     run-k3v8x0qa.wandb.upload            held by whoever sends it; where its console output begins on the server, and
//!                                          how many alerts and artifacts were sent
//!     run-k3v8x0qa.wandb.synced            all of it has been sent
//!     files/                               what files records name
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::log::{Reader, Writer};
use super::record::{Record, Run};

/// Deeper there are no logs: `multirun/DATE/TIME/JOB/wandb/run-...`, in a project's folder.
const MOST_LEVELS: usize = 8;

/// One process's log.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) log: PathBuf,
    pub(super) run: Run,
}

impl Segment {
    /// `None`: no log, or one without a run.
    fn open(log: &Path) -> Option<Self> {
        let mut reader = Reader::open(log).ok()?;
        while let Ok(Some(bytes)) = reader.next() {
            if let Ok(Record::Run(run)) = Record::decode(&bytes) {
                let log = log.to_owned();
                return Some(Self { log, run: *run });
            }
        }
        None
    }

    pub(super) fn folder(&self) -> &Path {
        tt_disk::parent(&self.log)
    }

    pub(super) fn is_synced(&self) -> bool {
        beside(&self.log, "synced").exists()
    }

    pub(super) fn mark_synced(&self) -> io::Result<()> {
        fs::write(beside(&self.log, "synced"), "")
    }
}

fn beside(log: &Path, suffix: &str) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// Where logs lie in a folder, as the reference client decides it.
pub(super) fn root(dir: &Path) -> PathBuf {
    let hidden = dir.join(".wandb");
    if hidden.is_dir() {
        hidden
    } else {
        dir.join("wandb")
    }
}

/// All logs of `id` in the folders of `root`, oldest first.
pub(super) fn of_run(root: &Path, id: &str) -> Vec<Segment> {
    let folders = entries(root);
    let is_named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(id) && !path.is_symlink()
    };
    let folders = folders.iter().filter(|path| is_named(path));
    let mut segments: Vec<_> = folders.flat_map(|path| in_folder(path)).collect();
    segments.retain(|segment| segment.run.id == id);
    segments.sort_by(|a, b| a.run.start_time.total_cmp(&b.run.start_time));
    segments
}

/// The logs in and below `path`, which may be one: those of a run, or of all runs in `outputs`.
pub(super) fn below(path: &Path) -> Vec<Segment> {
    if path.is_file() {
        return Segment::open(path).into_iter().collect();
    }
    let mut segments = Vec::new();
    collect(path, MOST_LEVELS, &mut segments);
    segments
}

fn collect(folder: &Path, levels: usize, segments: &mut Vec<Segment>) {
    segments.extend(in_folder(folder));
    if levels == 0 {
        return;
    }
    for path in entries(folder) {
        let is_checkpoints = path.file_name().is_some_and(|name| name == "checkpoints");
        // `latest-run` is a link to what is there anyway.
        if path.is_dir() && !path.is_symlink() && !is_checkpoints {
            collect(&path, levels - 1, segments);
        }
    }
}

fn in_folder(folder: &Path) -> Vec<Segment> {
    let logs = entries(folder);
    let logs = logs.iter().filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("run-") && name.ends_with(".wandb")
    });
    logs.filter_map(|log| Segment::open(log)).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = listing.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// What earlier logs of a run hold.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Extent {
    pub(super) last_step: Option<u64>,
    /// Seconds.
    pub(super) runtime: f64,
}

/// Takes rows of steps after `step` out of the logs: they are no longer true, and are made again. What has been sent of
/// them stays at the server, which takes no second row of a step; so a log that was sent as a whole stays as it is.
pub(super) fn rewind(segments: &[Segment], step: u64) -> io::Result<Extent> {
    let mut extent = Extent::default();
    for segment in segments {
        let mut has_more = false;
        let step = if segment.is_synced() { u64::MAX } else { step };
        each(&segment.log, |record, _| {
            let runtime = match record {
                Record::History { step: at, items } => {
                    if at > step {
                        has_more = true;
                    } else {
                        extent.last_step = extent.last_step.max(Some(at));
                    }
                    // Also of rows taken out, which may have been sent: time goes on.
                    let runtime = items.get("_runtime").and_then(|text| text.parse().ok());
                    runtime.unwrap_or(0.0)
                }
                Record::Run(run) => run.runtime as f64,
                Record::Exit { runtime, .. } => runtime as f64,
                _ => return Ok(()),
            };
            extent.runtime = extent.runtime.max(runtime);
            Ok(())
        })?;
        if has_more {
            cut(&segment.log, step)?;
        }
    }
    Ok(extent)
}

fn cut(log: &Path, step: u64) -> io::Result<()> {
    let replaced = tt_disk::replace(log, |out| {
        let mut writer = Writer::new(out)?;
        each(log, |record, bytes| {
            let is_untrue = matches!(record, Record::History { step: at, .. } if at > step);
            if is_untrue {
                return Ok(());
            }
            writer.write(bytes)
        })
    });
    Ok(replaced?)
}

/// Hands over every record that is whole; a log that is damaged ends where it is.
pub(super) fn each(
    log: &Path,
    mut take: impl FnMut(Record, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = Reader::open(log)?;
    while let Ok(Some(bytes)) = reader.next() {
        match Record::decode(&bytes) {
            Ok(record) => take(record, &bytes)?,
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The right to send a log, and what must be remembered of it. Ends with the process.
pub(super) struct Claim {
    file: File,
}

impl Claim {
    /// `None`: somebody else sends it.
    pub(super) fn new(segment: &Segment) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(beside(&segment.log, "upload"))?;
        match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            // A file system without locks: there it is the user who must not send a log twice at once.
            Ok(()) | Err(fs::TryLockError::Error(_)) => Ok(Some(Self { file })),
        }
    }

    /// The line of the server's output.log at which this log's output begins, if it was given one.
    pub(super) fn output_line(&mut self) -> Option<u64> {
        self.note("output")
    }

    pub(super) fn set_output_line(&mut self, line: u64) -> io::Result<()> {
        self.set_note("output", line)
    }

    /// How many of the log's alerts have been raised.
    pub(super) fn num_alerts(&mut self) -> u64 {
        self.note("alerts").unwrap_or(0)
    }

    pub(super) fn set_num_alerts(&mut self, count: u64) -> io::Result<()> {
        self.set_note("alerts", count)
    }

    /// How many of the log's artifacts the server has been told of.
    pub(super) fn num_artifacts(&mut self) -> u64 {
        self.note("artifacts").unwrap_or(0)
    }

    pub(super) fn set_num_artifacts(&mut self, count: u64) -> io::Result<()> {
        self.set_note("artifacts", count)
    }

    fn notes(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        Ok(text)
    }

    fn note(&mut self, name: &str) -> Option<u64> {
        let notes = self.notes().ok()?;
        let mut values = notes.lines().filter_map(|line| {
            let (other, value) = line.split_once(' ')?;
            value.parse().ok().filter(|_| other == name)
        });
        values.next_back()
    }

    /// Appended: a kill between two writes loses no other note.
    fn set_note(&mut self, name: &str, value: u64) -> io::Result<()> {
        self.file.seek(io::SeekFrom::End(0))?;
        writeln!(self.file, "{name} {value}")?;
        self.file.sync_data()
    }
}
