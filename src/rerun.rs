//! `--experimental-rerun RUN`: does again what a run has recorded, in a run folder of its own.
//!
//! The recorded config is composed as it stands, with no other folder to look in: config files that have changed since
//! make no difference. The recorded overrides are in it already; they are only recorded again. Overrides given now go
//! on top, where a key can be changed but no group chosen. Of Hydra's settings only `hydra.runtime.choices` is taken
//! over, since the others say where a run goes: `hydra.run.dir=...` names another folder.

use std::path::Path;

use anyhow::anyhow;
use tt_config::{Composer, Composition, Value};
use tt_run::ending::RERUN_FLAG;
use tt_run::{RecordedRun, program, segments};

use crate::failure::Failure;
use crate::out;

/// What composes the config recorded in `folder`: a run folder, or the records in it.
pub(crate) fn composer(folder: &Path) -> Result<Composer, Failure> {
    let run = RecordedRun::at(folder);
    let composer = recorded(&run)?;
    warn_of_segments(run.folder());
    Ok(composer)
}

/// What composes the config that `run` has recorded.
pub(crate) fn recorded(run: &RecordedRun) -> Result<Composer, Failure> {
    let Some(records) = run.config_folder() else {
        let folder = run.folder().display();
        return Err(Failure::Request(anyhow!(
            "{RERUN_FLAG}: {folder} is not a run folder: it has no .hydra/config.yaml"
        )));
    };
    Ok(Composer::new("config")
        .job_name(program::running().name)
        .directory("rerun", records)
        .applied(run.overrides()?))
}

/// A run whose config changed on the way cannot be made again by one config.
fn warn_of_segments(run: &Path) {
    let segments: Vec<_> = segments(run)
        .into_iter()
        .filter(|it| !it.is_gone())
        .collect();
    let Some(last) = segments.last() else {
        return;
    };
    for earlier in &segments[..segments.len() - 1] {
        let differences = last.differences(earlier);
        if differences.is_empty() {
            continue;
        }
        let listed: Vec<_> = differences.iter().map(ToString::to_string).collect();
        out::error_line(format_args!(
            "warning: {} ran under another config up to step {}: {}; this does again what it asked for last, {RERUN_FLAG} {} what it asked for then",
            run.display(),
            earlier.last_step.unwrap_or_default(),
            listed.join(", "),
            earlier.folder.display(),
        ));
    }
}

/// Takes over what composing cannot find out, and keeps the run from going on with an earlier one.
pub(crate) fn prepare(
    composition: &mut Composition,
    folder: &Path,
    overrides: &[String],
) -> Result<(), Failure> {
    if let Some(choices) = RecordedRun::at(folder).choices()? {
        composition.set("hydra.runtime.choices", choices.value);
    }
    if !overrides.iter().any(|given| given.starts_with("resume=")) {
        composition.set("resume", Value::Str("none".to_owned()));
    }
    Ok(())
}
