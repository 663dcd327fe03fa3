//! Where configs come from: folders on disk first, then the files compiled into the binary.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use tt_config::Composer;

use crate::cli::Args;
use crate::failure::Failure;
use crate::program;

/// Config files compiled into a program: (path below the root of the configs, text).
pub type Files = &'static [(&'static str, &'static str)];

/// The files under `configs/` at build time.
pub(crate) const EMBEDDED: Files = include!(concat!(env!("OUT_DIR"), "/configs.rs"));

/// The folder that is looked in if it exists.
const DEFAULT_FOLDER: &str = "configs";

/// The config groups, each with its options.
pub(crate) type Groups = Vec<(String, Vec<String>)>;

/// What composes the configuration that the command line describes; `root` is the root config if it names none, `own`
/// are files of a program that adds plug-ins.
pub(crate) fn composer(args: &Args, own: Files, root: &str) -> Result<Composer, Failure> {
    let name = args.config_name.as_deref().unwrap_or(root);
    let mut composer = Composer::new(name)
        .lenient_groups(true)
        .job_name(program::running().name);
    match &args.config_path {
        Some(folder) => composer = composer.directory("main", named(folder, "--config-path")?),
        None if Path::new(DEFAULT_FOLDER).is_dir() => {
            composer = composer.directory("main", DEFAULT_FOLDER);
        }
        None => {}
    }
    if let Some(folder) = &args.config_dir {
        composer = composer.directory("command-line", named(folder, "--config-dir")?);
    }
    if !own.is_empty() {
        composer = composer.embedded("program", own);
    }
    Ok(composer.embedded("tpu-train", EMBEDDED))
}

/// A folder that was named must exist.
fn named(folder: &Path, flag: &str) -> Result<PathBuf, Failure> {
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let folder = folder.display();
    Err(Failure::Request(anyhow!(
        "{flag}: {folder} is not a folder"
    )))
}
