//! Which folder a run works in, and which checkpoint it goes on from.
//!
//! | `resume` | `hydra.run.dir` given | otherwise |
//! | --- | --- | --- |
//! | `auto` | goes on there if it has saved; nothing to do if that run has finished | goes on with the newest unfinished run of the same config |
//! | `none` | an earlier run there is moved aside | a new folder |
//! | a run folder | as `auto` if the run there began from it; else takes its newest checkpoint, works in the folder given | goes on there |
//! | a checkpoint | as `auto` if the run there began from it; else takes it, works in the folder given | goes on with the newest unfinished run of the same config that began from it; else takes it, works in a new folder |
//!
//! A run that has saved is never started over in place: if none of its checkpoints can be used, that is an error. Nor does
//! another experiment go on in its folder by `auto`: one may be longer or save more often, but what decides its numbers
//! must be as it was, or that is an error with the keys that differ. `resume=RUN` goes on with changed keys.
//!
//! Two configs are of the same run if they differ only in what cannot change its numbers: see [`same_run()`].
//!
//! What is decided depends on which checkpoint is the newest, and the newest may lack only its final name. So a folder is
//! locked, and what a killed writer left there is ended, before its checkpoints are looked at: by [`decide_and_hold`].

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tt_checkpoint::{Checkpoint, Damage};
use tt_metrics::with_causes;

use crate::decision::{Decision, FolderChoice, HeldFolder, Resume, RunRequest, Start};
use crate::output_dir::subfolders;
use crate::quote;
use crate::run_dir::{self, RESOLVED_CONFIG, RunDir, RunDirError};
use crate::same_run::{Difference, differences, read_config, same_run};

#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
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
        "{} holds another run, with other values of\n  {}\n\
         a run goes on where only its length, how often it saves and the like, device settings, logging and names differ; else\n  \
         hydra.run.dir=... (another folder) starts this one beside it\n  \
         {} goes on with that one under the changed keys\n  \
         resume=none moves that one aside and starts this one here",
        run.display(),
        differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  "),
        going_on(run),
    )]
    AnotherRun {
        run: PathBuf,
        differences: Vec<Difference>,
    },
    #[error(
        "cannot tell whether {} holds this run: {why}; {} goes on with it whatever it is, resume=none moves it aside",
        run.display(),
        going_on(run),
    )]
    UnknownRun { run: PathBuf, why: String },
    #[error(
        "resume={path} lies inside hydra.run.dir; to branch off from it, name another hydra.run.dir"
    )]
    InsideRunDir { path: PathBuf },
}

/// The argument that goes on with `run` whatever has changed.
fn going_on(run: &Path) -> String {
    quote::shell(&format!("resume={}", quote::value(run)))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Decides, and locks the folder if an earlier run goes on in it.
pub fn decide_and_hold(request: &RunRequest) -> Result<(Decision, HeldFolder), ResumeError> {
    let mut folders = Folders {
        takes: true,
        held: None,
    };
    let decision = decide_among(&mut folders, request)?;
    let chosen = match &decision {
        Decision::Start(start) => Some(start.folder.path()),
        Decision::Finished(_) => None,
    };
    let held = folders.held.filter(|held| Some(held.path()) == chosen);
    Ok((decision, HeldFolder::new(held)))
}

/// Decides where to work, from which checkpoint and how far. Nothing is written, and no checkpoint recovered.
pub fn decide(request: &RunRequest) -> Result<Decision, ResumeError> {
    let mut folders = Folders {
        takes: false,
        held: None,
    };
    decide_among(&mut folders, request)
}

/// The folders of earlier runs as they are looked at, one after the other.
struct Folders {
    /// Whether they are locked and recovered for that.
    takes: bool,
    /// The one looked at last.
    held: Option<RunDir>,
}

impl Folders {
    /// The full path of a folder that no other process works in.
    fn free(&mut self, folder: &Path) -> Result<PathBuf, ResumeError> {
        self.held = None;
        if !self.takes {
            RunDir::check_free(folder)?;
            return Ok(absolute(folder));
        }
        let held = RunDir::open(folder)?;
        let run = held.path().to_owned();
        match tt_checkpoint::recover(&held.checkpoints()) {
            Ok(()) => self.held = Some(held),
            Err(source) => return Err(ResumeError::Unreadable { run, source }),
        }
        Ok(run)
    }
}

fn decide_among(folders: &mut Folders, request: &RunRequest) -> Result<Decision, ResumeError> {
    let folder = request.output_dir.path;
    let stays = request.output_dir.is_given()
        && match &request.resume {
            Resume::Auto => true,
            Resume::Never => false,
            Resume::From(path) => run_dir::origin(folder).is_some_and(|o| o == full_path(path)),
        };
    if stays {
        refuse_another_run(folder, request)?;
    }
    if stays && run_dir::is_finished(folder) && holds_same_run(folder, request)? {
        return Ok(Decision::Finished(folder.to_owned()));
    }
    let start = match &request.resume {
        _ if stays => auto_in_given_folder(folders, request),
        Resume::Auto => auto_among_earlier_runs(folders, request),
        Resume::Never => Ok(fresh(request)),
        Resume::From(path) => from_path(folders, path, request),
    }?;
    if let FolderChoice::Earlier(folder) = &start.folder
        && run_dir::is_finished(folder)
        && start.checkpoint.is_some()
        && request
            .max_steps
            .is_some_and(|max| start.first_step() >= max)
    {
        return Ok(Decision::Finished(folder.to_owned()));
    }
    Ok(Decision::Start(start))
}

/// Error: `folder` holds something worth keeping of another run than the one asked for.
fn refuse_another_run(folder: &Path, request: &RunRequest) -> Result<(), ResumeError> {
    if !has_result(folder) {
        return Ok(());
    }
    let run = absolute(folder);
    let Some(earlier) = recorded_config(folder)? else {
        let why = format!("it has no {RESOLVED_CONFIG}");
        return Err(ResumeError::UnknownRun { run, why });
    };
    let mut differences = differences(&earlier, request.config);
    differences.retain(Difference::is_refused);
    if differences.is_empty() {
        return Ok(());
    }
    Err(ResumeError::AnotherRun { run, differences })
}

/// Whether the run in `folder` has finished or begun to save.
fn has_result(folder: &Path) -> bool {
    let saved = subfolders(&run_dir::checkpoints(folder));
    run_dir::is_finished(folder) || saved.is_ok_and(|saved| !saved.is_empty())
}

/// The same for every way of writing a path; one that is gone has its name at least.
fn full_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| absolute(path))
}

fn recorded_config(folder: &Path) -> Result<Option<Value>, ResumeError> {
    read_config(folder).map_err(|error| ResumeError::UnknownRun {
        run: absolute(folder),
        why: with_causes(&error),
    })
}

fn holds_same_run(folder: &Path, request: &RunRequest) -> Result<bool, ResumeError> {
    let config = recorded_config(folder)?;
    Ok(config.is_some_and(|config| same_run(&config, request.config)))
}

fn auto_in_given_folder(folders: &mut Folders, request: &RunRequest) -> Result<Start, ResumeError> {
    let path = request.output_dir.path;
    if !run_dir::holds_run(path) {
        RunDir::check_free(path)?;
        return Ok(fresh(request));
    }
    let folder = folders.free(path)?;
    if let Some(start) = continued(&folder, request, "hydra.run.dir holds it")? {
        return Ok(start);
    }
    let origin = run_dir::origin(&folder);
    let is_same_run = !run_dir::is_finished(&folder) && holds_same_run(&folder, request)?;
    let mut start = match origin.filter(|_| is_same_run) {
        Some(origin) => started_from(&origin, request)?,
        None => fresh(request),
    };
    // Stopped before its first save: the same run starts over, there is nothing worth moving aside.
    if is_same_run {
        start.folder = FolderChoice::Earlier(folder.clone());
        start.messages.push(format!(
            "starting {} over: it had not saved yet",
            folder.display()
        ));
    }
    Ok(start)
}

fn auto_among_earlier_runs(
    folders: &mut Folders,
    request: &RunRequest,
) -> Result<Start, ResumeError> {
    let why = "it is unfinished and has the same config; resume=none starts afresh";
    let earlier = earlier_runs(request);
    first_usable(folders, earlier, request, why, || Ok(fresh(request)))
}

/// Goes on with the first of `earlier` that can be, or else as `otherwise` says.
fn first_usable(
    folders: &mut Folders,
    earlier: EarlierRuns,
    request: &RunRequest,
    why: &str,
    otherwise: impl FnOnce() -> Result<Start, ResumeError>,
) -> Result<Start, ResumeError> {
    let mut messages = earlier.notes;
    for folder in earlier.folders {
        let folder = match folders.free(&folder) {
            Ok(folder) => folder,
            // Another's, it may be: it must not stand in the way of this one.
            Err(ResumeError::RunDir(e)) => {
                messages.push(format!("not resuming: {}", with_causes(&e)));
                continue;
            }
            Err(e) => return Err(e),
        };
        match continued(&folder, request, why) {
            Ok(Some(mut start)) => {
                messages.append(&mut start.messages);
                return Ok(Start { messages, ..start });
            }
            Ok(None) => {}
            // Where it was saved nothing is touched: the run begins again in a new folder.
            Err(ResumeError::AllDamaged { run, damage }) => {
                messages.extend(damage.iter().map(|one| format!("warning: {one}")));
                messages.push(format!(
                    "not resuming {}: none of its checkpoints can be used",
                    run.display()
                ));
            }
            Err(e) => return Err(e),
        }
    }
    let mut start = otherwise()?;
    start.messages.splice(..0, messages);
    Ok(start)
}

fn from_path(
    folders: &mut Folders,
    path: &Path,
    request: &RunRequest,
) -> Result<Start, ResumeError> {
    let is_run = run_dir::checkpoints(path).is_dir();
    let is_same =
        is_inside(path, request.output_dir.path) && is_inside(request.output_dir.path, path);
    if is_run && (is_same || !request.output_dir.is_given()) {
        let start = continued(&folders.free(path)?, request, "resume names it")?;
        let path = path.to_owned();
        return start.ok_or(ResumeError::NothingThere { path });
    }
    // Its later checkpoints would be taken for the continuation's. A folder named by the clock gets another name.
    if request.output_dir.is_given() && is_inside(path, request.output_dir.path) {
        let path = path.to_owned();
        return Err(ResumeError::InsideRunDir { path });
    }
    if request.output_dir.is_given() {
        return started_from(path, request);
    }
    let origin = full_path(path);
    let mut earlier = earlier_runs(request);
    earlier
        .folders
        .retain(|run| run_dir::origin(run).as_ref() == Some(&origin));
    let why = "it began from there and is unfinished; another hydra.run.dir branches off again";
    first_usable(folders, earlier, request, why, || {
        started_from(path, request)
    })
}

/// A run of its own, from the checkpoint at `path` or the newest of the run there.
fn started_from(path: &Path, request: &RunRequest) -> Result<Start, ResumeError> {
    let nothing_there = || ResumeError::NothingThere {
        path: path.to_owned(),
    };
    let (checkpoint, mut messages) = if run_dir::checkpoints(path).is_dir() {
        newest_checkpoint(path)?.ok_or_else(nothing_there)?
    } else if path.is_dir() {
        (Checkpoint::open(path)?, Vec::new())
    } else {
        return Err(nothing_there());
    };
    messages.push(format!(
        "starting from step {} of {}",
        checkpoint.step(),
        checkpoint.dir().display()
    ));
    Ok(Start {
        checkpoint: Some(checkpoint),
        origin: Some(full_path(path)),
        messages,
        ..fresh(request)
    })
}

/// The newest checkpoint of the run in `folder` that can be used, and a message on each that cannot.
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

/// The run goes on in `folder` if it has saved.
fn continued(folder: &Path, request: &RunRequest, why: &str) -> Result<Option<Start>, ResumeError> {
    let Some((checkpoint, mut messages)) = newest_checkpoint(folder)? else {
        return Ok(None);
    };
    messages.push(format!(
        "resuming {} from step {}: {why}",
        folder.display(),
        checkpoint.step()
    ));
    match read_config(folder) {
        Ok(Some(earlier)) => {
            let changed = differences(&earlier, request.config).into_iter();
            messages.extend(changed.map(|one| format!("config changed since: {one}")));
        }
        Ok(None) => messages.push(format!(
            "warning: it has no {RESOLVED_CONFIG} to compare the config with"
        )),
        Err(error) => messages.push(format!(
            "warning: no config to compare with: {}",
            with_causes(&error)
        )),
    }
    Ok(Some(Start {
        origin: run_dir::origin(folder),
        folder: FolderChoice::Earlier(folder.to_owned()),
        checkpoint: Some(checkpoint),
        max_steps: request.max_steps,
        messages,
    }))
}

fn is_inside(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder),
        _ => false, // what does not exist holds nothing
    }
}

/// A folder without an earlier run in it.
fn fresh(request: &RunRequest) -> Start {
    let path = request.output_dir.path.to_owned();
    Start {
        folder: if request.output_dir.is_given() {
            FolderChoice::Given(path)
        } else {
            FolderChoice::New(path)
        },
        checkpoint: None,
        origin: None,
        max_steps: request.max_steps,
        messages: Vec::new(),
    }
}

/// What earlier commands have left where this one would work.
struct EarlierRuns {
    /// Unfinished runs of the same config, newest first.
    folders: Vec<PathBuf>,
    /// What may be one and cannot be read.
    notes: Vec<String>,
}

fn earlier_runs(request: &RunRequest) -> EarlierRuns {
    let mut notes = Vec::new();
    let mut folders = request.output_dir.earlier_folders(&mut notes);
    folders.retain(|run| {
        if run_dir::is_finished(run) {
            return false;
        }
        let is_same = holds_same_run(run, request);
        match &is_same {
            Err(ResumeError::UnknownRun { run, why }) if has_result(run) => {
                notes.push(format!("warning: not resuming {}: {why}", run.display()));
            }
            _ => {}
        }
        is_same.unwrap_or(false)
    });
    EarlierRuns { folders, notes }
}
