//! Which checkpoints are kept, and under which names.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    config::CheckpointConfig,
    disk,
    error::{Error, Result},
    hold::Holds,
    manifest::Manifest,
};

pub(crate) fn step_dir_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a folder named as [`step_dir_name`] names it, and no other.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_dir_name(step) == name).then_some(step)
}

/// The name under which the folder `path` waits for its removal. Renamed first, a folder that is
/// removed in part has no final name.
pub(crate) fn trash_for(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".old-{name}"))
}

/// The folders under final names in `dir`, oldest first, good or damaged. Empty if `dir` does
/// not exist.
pub(crate) fn step_dirs(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found: Vec<_> = entry_names(dir)?
        .into_iter()
        .filter_map(|name| Some((step_of(&name)?, dir.join(name))))
        .filter(|(_, path)| path.is_dir())
        .collect();
    found.sort();
    Ok(found)
}

/// Names of everything in `dir`.
pub(crate) fn entry_names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::io("list", dir, e))?,
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map_err(|e| Error::io("list", dir, e))
}

/// Removes the complete checkpoints that `config` does not keep, never `just_written` nor one of `held`. Folders
/// that are not complete count for nothing and are left for their owner to look at.
///
/// `just_written` is the only one whose content is known to be good; the others have their full
/// size. So at least one good one stays whatever has happened to the rest.
pub(crate) fn prune(
    dir: &Path,
    config: &CheckpointConfig,
    held: &Holds,
    just_written: u64,
) -> Result<Vec<PathBuf>> {
    let Some(keep_last) = config.keep_last else {
        return Ok(Vec::new());
    };
    let complete: Vec<_> = step_dirs(dir)?
        .into_iter()
        .filter(|(_, path)| Manifest::read(path).is_ok())
        .collect();
    let num_old = complete.len().saturating_sub(keep_last.get());
    let mut removed = Vec::new();
    for (step, path) in complete.into_iter().take(num_old) {
        let is_milestone = config.keep_every.is_some_and(|n| step % n == 0);
        if step == just_written || is_milestone || held.contains(step) {
            continue;
        }
        let trash = trash_for(&path);
        disk::remove_dir(&trash)?;
        disk::rename(&path, &trash)?;
        disk::remove_dir(&trash)?;
        removed.push(path);
    }
    Ok(removed)
}
