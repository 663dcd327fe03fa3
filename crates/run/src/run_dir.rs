//! The folder of one run, locked while a process works in it.
//!
//! ```text
//! outputs/2026-01-31/12-00-00/
//!   .hydra/{config,hydra,overrides}.yaml   as Hydra writes them; `hydra.output_subdir` names another folder, null none
//!   .hydra/origins.json                    where each value came from
//!   resolved_config.json                   the whole config, resolved
//!   run_id                                 what sinks know the run by, as long as the folder lives
//!   started_from                           the `resume=PATH` it began from, if it did
//!   environment.json                       version, git hash, machine
//!   segments/001/ ...                      the same of each start: see `segments`
//!   metrics.jsonl  samples.jsonl           what happened, and what the model wrote on the way
//!   histograms.jsonl                       how gradients and weights were spread: `logging.histogram_interval`
//!   summary.json                           how it ended; only once the run has finished
//!   report.html  plots/                    the same for people
//!   console.log                            what it printed
//!   device.log                             what a TPU's libraries print
//!   checkpoints/step-00000500/             Hugging Face layout and trainer state
//!   .lock                                  held by the process at work; names it
//! ```
//!
//! The lock is the operating system's, so it ends with the process, however that ends.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::program;

/// How a run ended: there only once it has.
pub const SUMMARY: &str = "summary.json";

/// The file in a run folder that holds its resolved config.
pub const RESOLVED_CONFIG: &str = "resolved_config.json";

/// The record of the steps.
pub const METRICS: &str = "metrics.jsonl";

/// What the model wrote on the way.
pub const SAMPLES: &str = "samples.jsonl";

/// How gradients and weights are spread, where that is asked for.
pub const HISTOGRAMS: &str = "histograms.jsonl";

/// The page that shows the run.
pub const REPORT: &str = "report.html";

const RUN_ID: &str = "run_id";
const STARTED_FROM: &str = "started_from";
const LOCK: &str = ".lock";

/// Where the run in `folder` has recorded what was asked for: `.hydra`, or what `hydra.output_subdir` said.
pub fn records(folder: &Path) -> PathBuf {
    let usual = folder.join(".hydra");
    if usual.is_dir() {
        return usual;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders = entries.map(|entry| entry.path());
    folders
        .find(|path| path.join("hydra.yaml").is_file())
        .unwrap_or(usual)
}

/// A run folder that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error(
        "run folder {path} is in use by process {holder}; wait for it, or choose another with hydra.run.dir=..."
    )]
    InUse { path: PathBuf, holder: String },
    #[error("cannot use {path} in a run folder")]
    Io { path: PathBuf, source: io::Error },
    #[error("{checkpoints} holds no checkpoint")]
    NoCheckpoint { checkpoints: PathBuf },
    #[error(transparent)]
    Checkpoint(#[from] tt_checkpoint::Error),
}

impl RunDir {
    /// Takes a folder under a name nobody else has: `path`, or `path-2`, `path-3`, ... if it is taken.
    pub fn create_new(path: &Path) -> Result<Self, RunDirError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RunDirError::Io { path, source }
        };
        let parent = tt_disk::parent(path);
        tt_disk::create_dir(parent).map_err(|error| failed(parent)(error.into()))?;
        let mut candidate = path.to_owned();
        for number in 2.. {
            // Making the folder is what claims the name: two processes cannot both succeed.
            match fs::create_dir(&candidate) {
                Ok(()) => {
                    tt_disk::sync_dir(parent).map_err(|error| failed(parent)(error.into()))?;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    candidate = with_suffix(path, &format!("-{number}"));
                }
                Err(e) => return Err(failed(&candidate)(e)),
            }
        }
        Self::open(&candidate)
    }

    /// Takes the folder at `path`, making it if need be.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::Io {
            path: path.to_owned(),
            source,
        };
        tt_disk::create_dir(path).map_err(|error| failed(error.into()))?;
        let path = std::path::absolute(path).map_err(failed)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))
            .map_err(failed)?;
        let mut lock = locked(lock, &path)?;
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| write!(lock, "{}", program::process()))
            .map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// Whether [`RunDir::open`] would get the folder, without making anything: an error says why not.
    pub fn check_free(path: &Path) -> Result<(), RunDirError> {
        let failed = |source| RunDirError::Io {
            path: path.to_owned(),
            source,
        };
        let path = std::path::absolute(path).map_err(failed)?;
        match OpenOptions::new()
            .read(true)
            .write(true)
            .open(path.join(LOCK))
        {
            Ok(lock) => locked(lock, &path).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Moves what the folder holds to `path.1` (or `.2`, ...) and starts it anew; gives the name it now has.
    pub fn set_aside(self) -> Result<(Self, PathBuf), RunDirError> {
        let failed = |source| RunDirError::Io {
            path: self.path.clone(),
            source,
        };
        let aside = (1..)
            .map(|number| with_suffix(&self.path, &format!(".{number}")))
            .find(|candidate| !candidate.exists())
            .expect("numbers do not end");
        fs::rename(&self.path, &aside).map_err(failed)?;
        Ok((Self::open(&self.path)?, aside))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn checkpoints(&self) -> PathBuf {
        checkpoints(&self.path)
    }

    pub fn is_used(&self) -> bool {
        self.path.join("metrics.jsonl").exists() || self.checkpoints().exists()
    }

    /// Makes the run count as unfinished, if it has finished before.
    pub fn reopen(&self) -> Result<(), RunDirError> {
        self.remove(SUMMARY)
    }

    /// Notes from where the run began: see [`origin`].
    pub fn set_origin(&self, origin: Option<&Path>) -> Result<(), RunDirError> {
        match origin {
            Some(path) => self.write(STARTED_FROM, &format!("{}\n", path.display())),
            None => self.remove(STARTED_FROM),
        }
    }

    /// What sinks know the run by: eight letters and digits, drawn when it is first asked for.
    pub fn id(&self) -> Result<String, RunDirError> {
        if let Ok(text) = fs::read_to_string(self.path.join(RUN_ID)) {
            return Ok(text.trim_end().to_owned());
        }
        // The standard library's source of chance: each hasher has keys of its own.
        let mut chance = RandomState::new().build_hasher().finish();
        let mut id = String::new();
        for _ in 0..8 {
            let digit = (chance % 36) as u32;
            id.push(char::from_digit(digit, 36).expect("under 36"));
            chance /= 36;
        }
        self.write(RUN_ID, &format!("{id}\n"))?;
        Ok(id)
    }

    fn remove(&self, name: &str) -> Result<(), RunDirError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(RunDirError::Io { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Writes a file of the run: a run killed here leaves it whole or absent.
    pub fn write(&self, name: &str, content: &str) -> Result<(), RunDirError> {
        let path = self.path.join(name);
        tt_disk::create_dir(tt_disk::parent(&path))
            .and_then(|()| tt_disk::write_file(&path, content.as_bytes()))
            .map_err(|error| RunDirError::Io {
                source: error.into(),
                path,
            })
    }
}

/// The lock taken. `path` is the folder's, for errors.
fn locked(mut lock: File, path: &Path) -> Result<File, RunDirError> {
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder); // only for the message
            let path = path.to_owned();
            Err(RunDirError::InUse { path, holder })
        }
        Err(TryLockError::Error(source)) => {
            let path = path.to_owned();
            Err(RunDirError::Io { path, source })
        }
    }
}

/// Whether a run has ever begun in `folder`.
pub(crate) fn holds_run(folder: &Path) -> bool {
    let marks = [RESOLVED_CONFIG, "metrics.jsonl", "checkpoints"];
    marks.iter().any(|name| folder.join(name).exists())
}

/// Where the run in `folder` keeps its checkpoints.
pub fn checkpoints(folder: &Path) -> PathBuf {
    folder.join("checkpoints")
}

/// The folder of the weights that `path` means: the newest checkpoint's, if it is a run's or that of its checkpoints, else
/// itself.
pub fn weights_folder(path: &Path) -> Result<PathBuf, RunDirError> {
    let mut checkpoints = checkpoints(path);
    if !checkpoints.is_dir() {
        // A folder of nothing but checkpoints, whatever it is called.
        if !tt_checkpoint::holds_checkpoints(path)? {
            return Ok(path.to_owned());
        }
        checkpoints = path.to_owned();
    }
    match tt_checkpoint::latest(&checkpoints)?.checkpoint {
        Some(checkpoint) => Ok(checkpoint.dir().to_owned()),
        None => Err(RunDirError::NoCheckpoint { checkpoints }),
    }
}

/// A run has finished once it has a summary.
pub fn is_finished(folder: &Path) -> bool {
    folder.join(SUMMARY).exists()
}

/// The checkpoint or run that the one in `folder` began from, by its full path; `None` if it began from nothing.
pub fn origin(folder: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(folder.join(STARTED_FROM)).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_a_number() {
        let root = tempfile::tempdir().unwrap();
        let name = root.path().join("day/time");
        let held: Vec<_> = (0..3).map(|_| RunDir::create_new(&name).unwrap()).collect();
        let names: Vec<_> = held.iter().map(|run| run.path().to_owned()).collect();
        assert_eq!(names[0], name);
        assert_eq!(names[1], root.path().join("day/time-2"));
        assert_eq!(names[2], root.path().join("day/time-3"));
    }

    #[test]
    fn a_held_folder_names_its_holder_and_is_free_again_when_dropped() {
        let root = tempfile::tempdir().unwrap();
        let held = RunDir::open(root.path()).unwrap();
        match RunDir::open(root.path()) {
            Err(RunDirError::InUse { holder, .. }) => {
                assert_eq!(holder, std::process::id().to_string());
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        RunDir::open(root.path()).unwrap();
    }

    #[test]
    fn an_earlier_run_set_aside_keeps_its_files() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::open(&root.path().join("run")).unwrap();
        run.write("metrics.jsonl", "{}\n").unwrap();
        assert!(run.is_used());
        let (run, aside) = run.set_aside().unwrap();
        assert!(!run.is_used());
        assert_eq!(aside, root.path().join("run.1"));
        assert_eq!(
            fs::read_to_string(aside.join("metrics.jsonl")).unwrap(),
            "{}\n"
        );
    }

    #[test]
    fn a_run_keeps_its_id_and_no_other_has_it() {
        let root = tempfile::tempdir().unwrap();
        let run = |name: &str| RunDir::open(&root.path().join(name)).unwrap();
        let (a, b) = (run("a"), run("b"));
        let id = a.id().unwrap();
        assert_eq!((id.len(), a.id().unwrap()), (8, id.clone()));
        assert!(
            id.chars()
                .all(|c| c.is_ascii_digit() || c.is_ascii_lowercase())
        );
        assert_ne!(b.id().unwrap(), id);
        // What is moved aside is the old run; the new one in its place is another.
        let (a, _) = a.set_aside().unwrap();
        assert_ne!(a.id().unwrap(), id);
    }

    #[test]
    fn a_file_in_the_way_is_an_error_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = RunDir::open(&file.join("run")).unwrap_err();
        assert!(error.to_string().contains("file/run"), "{error}");
    }
}
