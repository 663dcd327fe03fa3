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

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use tt_checkpoint::{Checkpoint, Damage};
use tt_metrics::with_causes;

use crate::decision::{Decision, FolderChoice, HeldFolder, Resume, RunRequest, Start};
use crate::run_dir::{self, RunDir, RunDirError};
use crate::same_run::{differences, read_config, same_run};

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
        "resume={path} lies inside hydra.run.dir; to branch off from it, name another hydra.run.dir"
    )]
    InsideRunDir { path: PathBuf },
}

/// Decides, and locks the folder if an earlier run goes on in it.
pub fn decide_and_hold(request: &RunRequest) -> Result<(Decision, HeldFolder), ResumeError> {
    loop {
        let decision = decide(request)?;
        let held = match &decision {
            Decision::Start(start) => start.folder.hold(),
            Decision::Finished(_) => Ok(HeldFolder::none()),
        };
        match held {
            // Somebody took it since it was found free. This time it will be found in use.
            Err(RunDirError::InUse { .. }) => {}
            held => return Ok((decision, held?)),
        }
    }
}

/// Decides where to work, from which checkpoint and how far. Nothing is written.
pub fn decide(request: &RunRequest) -> Result<Decision, ResumeError> {
    let folder = request.output_dir.path;
    let stays = request.output_dir.is_given()
        && match &request.resume {
            Resume::Auto => true,
            Resume::Never => false,
            Resume::From(path) => run_dir::origin(folder).is_some_and(|o| o == full_path(path)),
        };
    if stays && run_dir::is_finished(folder) && holds_same_run(folder, request) {
        return Ok(Decision::Finished(folder.to_owned()));
    }
    let start = match &request.resume {
        _ if stays => auto_in_given_folder(request),
        Resume::Auto => auto_among_earlier_runs(request),
        Resume::Never => Ok(fresh(request)),
        Resume::From(path) => from_path(path, request),
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

/// The same for every way of writing a path; one that is gone has its name at least.
fn full_path(path: &Path) -> PathBuf {
    let full = path.canonicalize().or_else(|_| std::path::absolute(path));
    full.unwrap_or_else(|_| path.to_owned())
}

fn holds_same_run(folder: &Path, request: &RunRequest) -> bool {
    read_config(folder).is_some_and(|config| same_run(&config, request.config))
}

fn auto_in_given_folder(request: &RunRequest) -> Result<Start, ResumeError> {
    if !request.output_dir.path.exists() {
        return Ok(fresh(request));
    }
    let folder = free(request.output_dir.path)?;
    if let Some(start) = continued(&folder, request, "hydra.run.dir holds it")? {
        return Ok(start);
    }
    let origin = run_dir::origin(&folder);
    let is_same_run = !run_dir::is_finished(&folder) && holds_same_run(&folder, request);
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

fn auto_among_earlier_runs(request: &RunRequest) -> Result<Start, ResumeError> {
    let why = "it is unfinished and has the same config; resume=none starts afresh";
    first_usable(earlier_runs(request), request, why, || Ok(fresh(request)))
}

/// Goes on with the first of `folders` that can be, or else as `otherwise` says.
fn first_usable(
    folders: impl Iterator<Item = PathBuf>,
    request: &RunRequest,
    why: &str,
    otherwise: impl FnOnce() -> Result<Start, ResumeError>,
) -> Result<Start, ResumeError> {
    let mut messages = Vec::new();
    for folder in folders {
        let folder = match free(&folder) {
            Ok(folder) => folder,
            // Another's, it may be: it must not stand in the way of this one.
            Err(e) => {
                messages.push(format!("not resuming: {}", with_causes(&e)));
                continue;
            }
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

fn from_path(path: &Path, request: &RunRequest) -> Result<Start, ResumeError> {
    let is_run = run_dir::checkpoints(path).is_dir();
    let is_same =
        is_inside(path, request.output_dir.path) && is_inside(request.output_dir.path, path);
    if is_run && (is_same || !request.output_dir.is_given()) {
        let start = continued(&free(path)?, request, "resume names it")?;
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
    let of_same_origin =
        earlier_runs(request).filter(|run| run_dir::origin(run).as_ref() == Some(&origin));
    let why = "it began from there and is unfinished; another hydra.run.dir branches off again";
    first_usable(of_same_origin, request, why, || started_from(path, request))
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

/// The full path of a folder that no other process works in.
fn free(folder: &Path) -> Result<PathBuf, RunDirError> {
    RunDir::check_free(folder)?;
    Ok(std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))
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
    if let Some(earlier) = read_config(folder) {
        for difference in differences(&earlier, request.config) {
            messages.push(format!("config changed since: {difference}"));
        }
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

/// Unfinished runs of the same config, newest first.
fn earlier_runs(request: &RunRequest) -> impl Iterator<Item = PathBuf> {
    let folders = request.output_dir.earlier_folders().into_iter();
    folders
        .filter(|run| !run_dir::is_finished(run))
        .filter(|run| holds_same_run(run, request))
}
