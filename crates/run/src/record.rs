//! What a run has been asked for, recorded in its folder and read again.
//!
//! Read is only what was recorded: config files that have changed since make no difference.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Map, Value as Json};
use tt_config::{Composition, Diagnostics, Missing, Node, Value};

use crate::origins::{self, ORIGINS};
use crate::run_dir::{RESOLVED_CONFIG, RunDir, RunDirError, records};
use crate::segments::{self, Segment};

const CONFIG: &str = "config.yaml";
const HYDRA: &str = "hydra.yaml";
const OVERRIDES: &str = "overrides.yaml";
/// What is recorded of the config as it was composed.
pub(crate) const CONFIG_FILES: [&str; 4] = [CONFIG, HYDRA, OVERRIDES, ORIGINS];

const CHOICES: &str = "hydra.runtime.choices";

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Config(#[from] Diagnostics),
    #[error(transparent)]
    Write(#[from] RunDirError),
}

/// Writes what the run was asked for, and where it is made, to the run folder and to a new segment of it. From here on it
/// counts as unfinished. Gives the whole configuration, resolved.
pub fn record(
    composition: &mut Composition,
    run_dir: &RunDir,
    segment: Segment,
) -> Result<Json, RecordError> {
    let path = run_dir.path().display().to_string();
    composition.set("hydra.runtime.output_dir", Value::Str(path));
    let overrides = composition.overrides();
    let overrides = overrides
        .iter()
        .map(|text| Node::built_in(Value::Str((*text).to_owned())));
    let overrides = Node::built_in(Value::List(overrides.collect()));
    let resolved = composition.resolve(Missing::Keep)?;
    run_dir.reopen()?;
    let environment = tt_metrics::environment();
    let segment = Segment {
        started: Some(Timestamp::now().strftime("%F %T").to_string()),
        host: environment["host"].as_str().map(str::to_owned),
        ..segment
    };
    let segment = segments::begin(run_dir, &segment)?;
    let write = |name: &str, content: &str| {
        run_dir.write(&format!("{segment}/{name}"), content)?;
        run_dir.write(name, content)
    };
    // As in Hydra: null records nothing of its own.
    let subdir = composition.resolved("hydra.output_subdir", Missing::Refuse)?;
    if let Some(subdir) = subdir.as_str() {
        for (name, content) in [
            (CONFIG, composition.job().to_yaml()),
            (HYDRA, composition.hydra().to_yaml()),
            (OVERRIDES, overrides.to_yaml()),
            (ORIGINS, pretty(&origins::of(&resolved))),
        ] {
            write(&format!("{subdir}/{name}"), &content)?;
        }
    }
    let resolved = resolved.to_json();
    for (name, content) in [
        (RESOLVED_CONFIG, pretty(&resolved)),
        ("environment.json", pretty(&environment)),
    ] {
        write(name, &content)?;
    }
    Ok(resolved)
}

fn pretty(value: &Json) -> String {
    format!("{value:#}\n")
}

/// A run folder as far as it says what was asked for.
#[derive(Debug)]
pub struct RecordedRun {
    folder: PathBuf,
    /// `.hydra` in it, or what it is called there.
    records: PathBuf,
}

impl RecordedRun {
    /// `folder` is a run's, or that of its records.
    pub fn at(folder: &Path) -> Self {
        let is_records = folder.join(HYDRA).is_file() && !folder.join(RESOLVED_CONFIG).exists();
        let folder = folder.parent().filter(|_| is_records).unwrap_or(folder);
        Self {
            folder: folder.to_owned(),
            records: records(folder),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the config as it was composed, in `config.yaml`; `None` if there is none.
    pub fn config_folder(&self) -> Option<&Path> {
        let records = self.records.as_path();
        records.join(CONFIG).is_file().then_some(records)
    }

    /// The whole config, resolved.
    pub fn resolved_config(&self) -> Result<Node, Diagnostics> {
        Ok(Node::read(&self.folder.join(RESOLVED_CONFIG))?) // JSON is YAML
    }

    /// The overrides as they were given.
    pub fn overrides(&self) -> Result<Vec<String>, Diagnostics> {
        let overrides = Node::read(&self.records.join(OVERRIDES))?;
        let texts = overrides.as_list().unwrap_or_default().iter();
        Ok(texts.filter_map(Node::as_str).map(str::to_owned).collect())
    }

    /// What was chosen for each config group, as the value of `hydra.runtime.choices`.
    pub fn choices(&self) -> Result<Option<Node>, Diagnostics> {
        let hydra = Node::read(&self.records.join(HYDRA))?;
        Ok(hydra.get(CHOICES).cloned())
    }

    /// By key of the resolved config, where its value came from; empty for a run that recorded none.
    pub fn origins(&self) -> tt_disk::Result<Map<String, Json>> {
        let path = self.records.join(ORIGINS);
        if !path.is_file() {
            return Ok(Map::new());
        }
        Ok(match tt_disk::read_json(&path)? {
            Json::Object(origins) => origins,
            _ => Map::new(),
        })
    }
}
