//! `--experimental-rerun RUN`: does again what a run has recorded, in a run folder of its own.
//!
//! The recorded config is composed as it stands, with no other folder to look in: config files that have changed since
//! make no difference. The recorded overrides are in it already; they are only recorded again. Overrides given now go
//! on top, where a key can be changed but no group chosen. Of Hydra's settings only `hydra.runtime.choices` is taken
//! over, since the others say where a run goes: `hydra.run.dir=...` names another folder.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use tt_config::{Composer, Composition, Value};

use crate::commands::inspect::{read_node, read_overrides};
use crate::failure::Failure;
use crate::program;
use crate::run_dir;

/// The name of the flag.
pub(crate) const FLAG: &str = "--experimental-rerun";

/// What composes the config recorded in `folder`: a run folder, or the records in it.
pub(crate) fn composer(folder: &Path) -> Result<Composer, Failure> {
    let run = run_folder(folder);
    let hydra = run_dir::records(&run);
    if !hydra.join("config.yaml").is_file() {
        let folder = folder.display();
        return Err(Failure::Request(anyhow!(
            "{FLAG}: {folder} is not a run folder: it has no .hydra/config.yaml"
        )));
    }
    Ok(Composer::new("config")
        .job_name(program::running().name)
        .directory("rerun", hydra)
        .applied(read_overrides(&run)?))
}

/// Takes over what composing cannot find out, and keeps the run from going on with an earlier one.
pub(crate) fn prepare(
    composition: &mut Composition,
    folder: &Path,
    overrides: &[String],
) -> Result<(), Failure> {
    let recorded = read_node(&run_dir::records(&run_folder(folder)).join("hydra.yaml"))?;
    if let Some(choices) = recorded.get("hydra.runtime.choices").cloned() {
        composition.set("hydra.runtime.choices", choices.value);
    }
    if !overrides.iter().any(|given| given.starts_with("resume=")) {
        composition.set("resume", Value::Str("none".to_owned()));
    }
    Ok(())
}

fn run_folder(folder: &Path) -> PathBuf {
    match folder.join("hydra.yaml").is_file() {
        true => folder.parent().unwrap_or(folder).to_owned(),
        false => folder.to_owned(),
    }
}
