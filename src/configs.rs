//! Where configs come from: folders on disk first, then the files compiled into the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use tt_config::{Composer, Composition};

use crate::cli::Args;
use crate::failure::Failure;

/// The files under `configs/` at build time: (path inside it, text).
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/configs.rs"));

/// The config groups, each with its options.
pub(crate) type Groups = BTreeMap<String, BTreeSet<String>>;

/// The folder that is looked in if it exists.
const DEFAULT_FOLDER: &str = "configs";

/// Composes the configuration that the command line describes.
pub(crate) fn compose(args: &Args) -> Result<Composition, Failure> {
    let name = args.config_name.as_deref().unwrap_or("default");
    let mut composer = Composer::new(name)
        .lenient_groups(true)
        .job_name("tpu-train");
    for (provider, folder) in folders(args)? {
        composer = composer.directory(provider, folder);
    }
    let composer = composer.embedded("tpu-train", EMBEDDED);
    Ok(composer.compose(&args.overrides)?)
}

/// The folders to look in, first to last. A folder that was named must exist.
fn folders(args: &Args) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let mut folders = Vec::new();
    match &args.config_path {
        Some(folder) => folders.push(("main", named(folder, "--config-path")?)),
        None if Path::new(DEFAULT_FOLDER).is_dir() => {
            folders.push(("main", DEFAULT_FOLDER.into()));
        }
        None => {}
    }
    if let Some(folder) = &args.config_dir {
        folders.push(("command-line", named(folder, "--config-dir")?));
    }
    Ok(folders)
}

fn named(folder: &Path, flag: &str) -> Result<PathBuf, Failure> {
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let folder = folder.display();
    Err(Failure::Request(anyhow!(
        "{flag}: {folder} is not a folder"
    )))
}

/// The options of every group, found in `folders` and compiled in, both sorted.
pub(crate) fn groups(args: &Args) -> Result<Groups, Failure> {
    let mut files: Vec<PathBuf> = EMBEDDED.iter().map(|(path, _)| path.into()).collect();
    for (_, folder) in folders(args)? {
        collect(&folder, Path::new(""), &mut files);
    }
    let mut groups = Groups::new();
    for file in files {
        let group = file
            .parent()
            .unwrap_or(Path::new(""))
            .to_string_lossy()
            .replace('\\', "/");
        let option = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        groups.entry(group).or_default().insert(option);
    }
    groups.remove(""); // the root configs
    Ok(groups)
}

/// The config files in `folder/below`, as paths inside `folder`.
fn collect(folder: &Path, below: &Path, files: &mut Vec<PathBuf>) {
    // What cannot be read cannot be chosen either.
    for entry in fs::read_dir(folder.join(below))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = below.join(entry.file_name());
        if entry.path().is_dir() {
            collect(folder, &path, files);
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "toml") {
            files.push(path);
        }
    }
}
