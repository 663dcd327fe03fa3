//! Which folder a run works in, and which checkpoint it goes on from.
//!
//! | `resume` | `hydra.run.dir` given | otherwise |
//! | --- | --- | --- |
//! | `auto` | goes on there if it has saved; nothing to do if that run has finished | goes on with the newest unfinished run of the same config |
//! | `none` | an earlier run there is moved aside | a new folder |
//! | a run folder | as `auto` if the run there began from it; else takes its newest checkpoint, works in the folder given | goes on there |
//! | a checkpoint | as `auto` if the run there began from it; else takes it, works in the folder given | goes on with the newest unfinished run of the same config that began from it; else takes it, works in a new folder |
//!
//! A run that has saved is never started over in place: if none of its checkpoints can be used, that is an error.
//!
//! Two configs are of the same run if they differ only in what cannot change its numbers: see [`same_run()`].

mod same_run;
mod start;
#[cfg(test)]
mod tests;
mod wanted;

use std::path::{Path, PathBuf};

use tt_checkpoint::{Checkpoint, Damage};

use crate::run_dir::{self, RunDir, RunDirError};

use same_run::{differences, read_config};

pub(crate) use same_run::{RESOLVED_CONFIG, same_run};
pub(crate) use start::{Decision, Folder, Start};
pub(crate) use wanted::Wanted;

/// The root key `resume`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Resume {
    Auto,
    Never,
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "none" => Self::Never,
            path => Self::From(path.into()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Checkpoint(#[from] tt_checkpoint::Error),
    #[error("resume={path}: found neither a checkpoint nor a run folder with one there")]
    NothingThere { path: PathBuf },
    #[error(
        "no checkpoint of {} can be used{}\nresume=none starts afresh and keeps this run",
        run.display(),
        damage.iter().map(|one| format!("\n  {one}")).collect::<String>(),
    )]
    AllDamaged { run: PathBuf, damage: Vec<Damage> },
    /// Not damage: the checkpoint may be whole, and passing over it would lose steps.
    #[error("cannot read the checkpoints of {}; resume=none starts afresh", run.display())]
    Unreadable {
        run: PathBuf,
        source: tt_checkpoint::Error,
    },
    #[error(
        "resume={path} lies inside hydra.run.dir; to branch off from it, name another hydra.run.dir"
    )]
    InsideRunDir { path: PathBuf },
}

/// Decides where to work, and locks that folder if an earlier run goes on in it.
pub(crate) fn decide(resume: &Resume, wanted: &Wanted) -> Result<Decision, ResumeError> {
    let folder = wanted.run_dir;
    let stays = wanted.is_given()
        && match resume {
            Resume::Auto => true,
            Resume::Never => false,
            Resume::From(path) => run_dir::origin(folder).is_some_and(|o| o == full_path(path)),
        };
    if stays && run_dir::is_finished(folder) && holds_same_run(folder, wanted) {
        return Ok(Decision::Finished(folder.to_owned()));
    }
    let start = match resume {
        _ if stays => auto_in_given_folder(wanted),
        Resume::Auto => auto_among_earlier_runs(wanted),
        Resume::Never => Ok(fresh(wanted)),
        Resume::From(path) => from_path(path, wanted),
    };
    start.map(Decision::Start)
}

/// The same for every way of writing a path; one that is gone has its name at least.
fn full_path(path: &Path) -> PathBuf {
    let full = path.canonicalize().or_else(|_| std::path::absolute(path));
    full.unwrap_or_else(|_| path.to_owned())
}

fn holds_same_run(folder: &Path, wanted: &Wanted) -> bool {
    read_config(folder).is_some_and(|config| same_run(&config, wanted.config))
}

fn auto_in_given_folder(wanted: &Wanted) -> Result<Start, ResumeError> {
    if !wanted.run_dir.exists() {
        return Ok(fresh(wanted));
    }
    let run_dir = RunDir::open(wanted.run_dir)?;
    let folder = run_dir.path().to_owned();
    if let Some(start) = continued(run_dir, wanted, "hydra.run.dir holds it")? {
        return Ok(start);
    }
    let origin = run_dir::origin(&folder);
    let is_same_run = !run_dir::is_finished(&folder) && holds_same_run(&folder, wanted);
    let mut start = match origin.filter(|_| is_same_run) {
        Some(origin) => started_from(&origin, wanted)?,
        None => fresh(wanted),
    };
    // Stopped before its first save: the same run starts over, there is nothing worth moving aside.
    if is_same_run {
        start.folder = Folder::Held(RunDir::open(&folder)?);
        start.notes.push(format!(
            "starting {} over: it had not saved yet",
            folder.display()
        ));
    }
    Ok(start)
}

fn auto_among_earlier_runs(wanted: &Wanted) -> Result<Start, ResumeError> {
    let why = "it is unfinished and has the same config; resume=none starts afresh";
    first_usable(earlier_runs(wanted), wanted, why, || Ok(fresh(wanted)))
}

/// Goes on with the first of `folders` that can be, or else as `otherwise` says.
fn first_usable(
    folders: impl Iterator<Item = PathBuf>,
    wanted: &Wanted,
    why: &str,
    otherwise: impl FnOnce() -> Result<Start, ResumeError>,
) -> Result<Start, ResumeError> {
    let mut notes = Vec::new();
    for folder in folders {
        let run_dir = match RunDir::open(&folder) {
            Ok(run_dir) => run_dir,
            // Another's, it may be: it must not stand in the way of this one.
            Err(e) => {
                notes.push(format!("not resuming: {:#}", anyhow::Error::from(e)));
                continue;
            }
        };
        match continued(run_dir, wanted, why) {
            Ok(Some(mut start)) => {
                notes.append(&mut start.notes);
                return Ok(Start { notes, ..start });
            }
            Ok(None) => {}
            // Where it was saved nothing is touched: the run begins again in a new folder.
            Err(ResumeError::AllDamaged { run, damage }) => {
                notes.extend(damage.iter().map(|one| format!("warning: {one}")));
                notes.push(format!(
                    "not resuming {}: none of its checkpoints can be used",
                    run.display()
                ));
            }
            Err(e) => return Err(e),
        }
    }
    let mut start = otherwise()?;
    start.notes.splice(..0, notes);
    Ok(start)
}

fn from_path(path: &Path, wanted: &Wanted) -> Result<Start, ResumeError> {
    let is_run = run_dir::checkpoints(path).is_dir();
    let is_same = is_inside(path, wanted.run_dir) && is_inside(wanted.run_dir, path);
    if is_run && (is_same || !wanted.is_given()) {
        let start = continued(RunDir::open(path)?, wanted, "resume names it")?;
        let path = path.to_owned();
        return start.ok_or(ResumeError::NothingThere { path });
    }
    // Its later checkpoints would be taken for the continuation's. A folder named by the clock gets another name.
    if wanted.is_given() && is_inside(path, wanted.run_dir) {
        let path = path.to_owned();
        return Err(ResumeError::InsideRunDir { path });
    }
    if wanted.is_given() {
        return started_from(path, wanted);
    }
    let origin = full_path(path);
    let of_same_origin =
        earlier_runs(wanted).filter(|run| run_dir::origin(run).as_ref() == Some(&origin));
    let why = "it began from there and is unfinished; another hydra.run.dir branches off again";
    first_usable(of_same_origin, wanted, why, || started_from(path, wanted))
}

/// A run of its own, from the checkpoint at `path` or the newest of the run there.
fn started_from(path: &Path, wanted: &Wanted) -> Result<Start, ResumeError> {
    let nothing_there = || ResumeError::NothingThere {
        path: path.to_owned(),
    };
    let (checkpoint, mut notes) = if run_dir::checkpoints(path).is_dir() {
        newest_checkpoint(path)?.ok_or_else(nothing_there)?
    } else if path.is_dir() {
        (Checkpoint::open(path)?, Vec::new())
    } else {
        return Err(nothing_there());
    };
    notes.push(format!(
        "starting from step {} of {}",
        checkpoint.step(),
        checkpoint.dir().display()
    ));
    Ok(Start {
        checkpoint: Some(checkpoint),
        origin: Some(full_path(path)),
        notes,
        ..fresh(wanted)
    })
}

/// The newest checkpoint of the run in `folder` that can be used, and a note on each that cannot.
///
/// `None` means that the run has never saved: if it has, and nothing of it can be used, that is an error.
fn newest_checkpoint(folder: &Path) -> Result<Option<(Checkpoint, Vec<String>)>, ResumeError> {
    let latest = tt_checkpoint::latest(&run_dir::checkpoints(folder));
    let run = folder.to_owned();
    let latest = match latest {
        Ok(latest) => latest,
        Err(source) => return Err(ResumeError::Unreadable { run, source }),
    };
    let damage = latest.skipped;
    match latest.checkpoint {
        Some(checkpoint) => {
            let note = |one| format!("warning: {one}; using the one before it");
            Ok(Some((checkpoint, damage.iter().map(note).collect())))
        }
        None if damage.is_empty() => Ok(None),
        None => Err(ResumeError::AllDamaged { run, damage }),
    }
}

/// The run goes on in `run_dir` if it has saved; otherwise the folder is let go.
fn continued(run_dir: RunDir, wanted: &Wanted, why: &str) -> Result<Option<Start>, ResumeError> {
    let Some((checkpoint, mut notes)) = newest_checkpoint(run_dir.path())? else {
        return Ok(None);
    };
    notes.push(format!(
        "resuming {} from step {}: {why}",
        run_dir.path().display(),
        checkpoint.step()
    ));
    if let Some(earlier) = read_config(run_dir.path()) {
        for difference in differences(&earlier, wanted.config) {
            notes.push(format!("config changed since: {difference}"));
        }
    }
    Ok(Some(Start {
        origin: run_dir::origin(run_dir.path()),
        folder: Folder::Held(run_dir),
        checkpoint: Some(checkpoint),
        notes,
    }))
}

fn is_inside(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder),
        _ => false, // what does not exist holds nothing
    }
}

/// A folder without an earlier run in it.
fn fresh(wanted: &Wanted) -> Start {
    let path = wanted.run_dir.to_owned();
    Start {
        folder: match wanted.is_given() {
            true => Folder::Given(path),
            false => Folder::New(path),
        },
        checkpoint: None,
        origin: None,
        notes: Vec::new(),
    }
}

/// Unfinished runs of the same config, newest first.
fn earlier_runs(wanted: &Wanted) -> impl Iterator<Item = PathBuf> {
    let folders = wanted.earlier_folders().into_iter();
    folders
        .filter(|run| !run_dir::is_finished(run))
        .filter(|run| holds_same_run(run, wanted))
}
