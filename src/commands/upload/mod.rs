//! `tpu-train upload`: a model and a page about it, to the Hugging Face Hub, in one commit of what is new.
//!
//! The trainer's state stays here.

mod card;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use tt_config::Diagnostics;
use tt_hub::{Hub, HubError, Reference, Repo, RepoKind, Upload, UploadSource, Wait};
use tt_run::run_dir::{RESOLVED_CONFIG, weights_folder};

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::hub::Shown;
use card::Card;

const README: &str = "README.md";
/// What says that a folder is whole. What is sent has its sizes and hashes on the Hub.
const MANIFEST: &str = "manifest.json";

/// The root config of `upload`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UploadConfig {
    /// A run folder, whose newest checkpoint is taken, or any folder in Hugging Face or peft layout.
    checkpoint: String,
    /// `user/name` on the Hub.
    repo: String,
    /// Whether a repository that is made is seen by its owner alone.
    private: bool,
    /// The branch.
    revision: String,
    /// Of the commit; null: which checkpoint it is.
    message: Option<String>,
}

/// What is wrong with the configuration itself.
pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    invocation.composition.extract::<UploadConfig>("").map(drop)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: UploadConfig = invocation.composition.extract("")?;
    let (folder, reference) = named(&config).map_err(Failure::Request)?;
    let uploads = files(&folder).map_err(Failure::Request)?;
    let hub = Hub::from_env().map_err(Failure::request)?;
    send(&hub, &config, &folder, &reference, uploads).map_err(|error| {
        match error.downcast_ref() {
            Some(HubError::Unreachable { .. } | HubError::Status { .. }) => Failure::Run(error),
            _ => Failure::Request(error),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn named(config: &UploadConfig) -> anyhow::Result<(PathBuf, Reference)> {
    let reference = Reference::parse(&config.repo, RepoKind::Model)?;
    let is_whole = reference.path.is_none() && reference.revision == tt_hub::DEFAULT_REVISION;
    if reference.repo.kind != RepoKind::Model || !is_whole {
        bail!("`repo`: a model is sent to user/name; `revision` says to which branch of it");
    }
    let reference = Reference {
        revision: config.revision.clone(),
        ..reference
    };
    Ok((weights_folder(Path::new(&config.checkpoint))?, reference))
}

/// The files of a model, but for the page about it.
fn files(folder: &Path) -> anyhow::Result<Vec<Upload>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut uploads = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| !name.starts_with('.')) else {
            continue;
        };
        if path.is_file() && ![MANIFEST, README].contains(&name) {
            uploads.push(Upload {
                path: name.to_owned(),
                source: UploadSource::File(path.clone()),
            });
        }
    }
    if !uploads
        .iter()
        .any(|upload| upload.path.ends_with(".safetensors"))
    {
        bail!("{} holds no weights", folder.display());
    }
    uploads.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(uploads)
}

fn send(
    hub: &Hub,
    config: &UploadConfig,
    folder: &Path,
    reference: &Reference,
    mut uploads: Vec<Upload>,
) -> anyhow::Result<()> {
    let repo = &reference.repo;
    hub.create_repo(repo, config.private, Wait::QUIET)?;
    if is_ours(hub, reference)? {
        uploads.push(page(folder, repo)?);
    } else {
        out::error_line(format_args!(
            "note: {README} of {repo} was written by hand and is left as it is"
        ));
    }
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    let message = config.message.clone();
    let message = message.unwrap_or_else(|| format!("Upload {}", name.display()));
    let shown = Shown::new("sending");
    let wait = Wait {
        interrupt: &|| false, // nothing is visible before the commit, so a signal may end the process
        progress: &|progress| shown.at(reference, progress),
    };
    let commit = hub.upload(reference, uploads, &message, wait);
    shown.end();
    let commit = commit?;
    let page = format!("{}/{}", hub.settings().endpoint, repo.id);
    out::line(match commit.changed.len() {
        0 => format!("{page} has all of it already, at {}", commit.id),
        1 => format!("sent {} to {page}: commit {}", commit.changed[0], commit.id),
        count => format!("sent {count} files to {page}: commit {}", commit.id),
    });
    Ok(())
}

/// Whether the page there is missing, or one that this program has written.
fn is_ours(hub: &Hub, reference: &Reference) -> anyhow::Result<bool> {
    let snapshot = hub.resolve(reference, Wait::QUIET)?;
    if snapshot.file(README).is_none() {
        return Ok(true);
    }
    let path = hub.download(&snapshot, README, Wait::QUIET)?;
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.contains(card::MARK))
}

/// The page beside the model, else one made of what the run has recorded.
fn page(folder: &Path, repo: &Repo) -> anyhow::Result<Upload> {
    let own = folder.join(README);
    let source = if own.is_file() {
        UploadSource::File(own)
    } else {
        let mut above = folder.ancestors().take(3); // RUN/checkpoints/STEP
        let run = above.find(|above| above.join(RESOLVED_CONFIG).is_file());
        UploadSource::Bytes(Card::read(&repo.id, folder, run).text().into_bytes())
    };
    Ok(Upload {
        path: README.to_owned(),
        source,
    })
}
