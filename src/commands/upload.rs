//! `tpu-train upload`: a model and a page about it, to the Hugging Face Hub.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use schemars::JsonSchema;
use serde::Deserialize;
use tt_config::Diagnostics;
use tt_hub::{Hub, HubError, Reference, Wait};

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::publish::{self, Publication};
use crate::setup::hub::{self, Need, Shown};

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
    let publication = Publication::of(&folder, &reference).map_err(Failure::Request)?;
    let hub = publish::client().map_err(Failure::Request)?;
    send(&hub, &config, publication).map_err(|error| match error.downcast_ref() {
        Some(HubError::Unreachable { .. } | HubError::Status { .. }) => Failure::Run(error),
        _ => Failure::Request(error),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn named(config: &UploadConfig) -> anyhow::Result<(PathBuf, Reference)> {
    let reference = publish::destination(&config.repo)?;
    if reference.revision != tt_hub::DEFAULT_REVISION {
        bail!("`repo`: `revision` says to which branch of it");
    }
    let reference = Reference {
        revision: config.revision.clone(),
        ..reference
    };
    Ok((hub::local(&config.checkpoint, Need::Weights)?, reference))
}

fn send(hub: &Hub, config: &UploadConfig, mut publication: Publication) -> anyhow::Result<()> {
    if let Some(message) = &config.message {
        publication.message = message.clone();
    }
    let reference = publication.reference.clone();
    let visibility = hub.create_repo(&reference.repo, config.private, Wait::QUIET)?;
    if config.private
        && let Some(warning) = publish::seen_by_all(hub, &reference, visibility)
    {
        out::error_line(warning);
    }
    let shown = Shown::new("sending");
    let wait = Wait {
        interrupt: &|| false, // nothing is visible before the commit, so a signal may end the process
        progress: &|progress| shown.at(&reference, progress),
    };
    let published = publication.send(hub, wait);
    shown.end();
    let published = published?;
    if published.leaves_page {
        let (page, repo) = (publish::README, &reference.repo);
        out::error_line(format_args!(
            "note: {page} of {repo} was written by hand and is left as it is"
        ));
    }
    let (page, commit) = (publish::page_of(hub, &reference), published.commit);
    out::line(match commit.changed.len() {
        0 => format!("{page} has all of it already, at {}", commit.id),
        1 => format!("sent {} to {page}: commit {}", commit.changed[0], commit.id),
        count => format!("sent {count} files to {page}: commit {}", commit.id),
    });
    Ok(())
}
