//! A model and a page about it to the Hugging Face Hub, in one commit of what is new.
//!
//! The trainer's state stays here.

mod card;
pub(crate) mod push;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tt_hub::{Commit, Hub, Reference, Repo, RepoKind, Upload, UploadSource, Visibility, Wait};
use tt_run::run_dir::RESOLVED_CONFIG;

use card::Card;

pub(crate) const README: &str = "README.md";
/// What says that a folder is whole. What is sent has its sizes and hashes on the Hub.
const MANIFEST: &str = "manifest.json";

/// Whoever sends something needs a token, and is told of it before the Hub speaks of repositories that are not there.
pub(crate) fn client() -> anyhow::Result<Hub> {
    let hub = Hub::from_env()?;
    if hub.settings().token.is_none() && hub.settings().offline.is_none() {
        bail!(
            "the Hub takes nothing without a token: make one that may write at {}/settings/tokens and set HF_TOKEN, or use `hf auth login`",
            hub.settings().endpoint
        );
    }
    Ok(hub)
}

/// The repository and the branch that a model is sent to.
pub(crate) fn destination(text: &str) -> anyhow::Result<Reference> {
    let reference = Reference::parse(text, RepoKind::Model)?;
    if reference.repo.kind != RepoKind::Model || reference.path.is_some() {
        bail!("`{text}`: a model is sent to user/name");
    }
    Ok(reference)
}

/// Its page, for people.
pub(crate) fn page_of(hub: &Hub, reference: &Reference) -> String {
    format!("{}/{}", hub.settings().endpoint, reference.repo.id)
}

/// A warning, if it is so.
pub(crate) fn seen_by_all(
    hub: &Hub,
    reference: &Reference,
    visibility: Visibility,
) -> Option<String> {
    (visibility == Visibility::Public).then(|| {
        format!(
            "warning: {} is public: everybody sees what is sent there; {}/settings makes it private",
            reference.repo,
            page_of(hub, reference)
        )
    })
}

/// What is to be sent, and where.
pub(crate) struct Publication {
    folder: PathBuf,
    /// All but the page.
    files: Vec<Upload>,
    pub(crate) reference: Reference,
    /// Of the commit.
    pub(crate) message: String,
}

pub(crate) struct Published {
    pub(crate) commit: Commit,
    /// The page there was written by hand, and stays.
    pub(crate) leaves_page: bool,
}

impl Publication {
    /// Of the model in `folder`. Error: it holds none.
    pub(crate) fn of(folder: &Path, reference: &Reference) -> anyhow::Result<Self> {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        Ok(Self {
            folder: folder.to_owned(),
            files: files(folder)?,
            reference: reference.clone(),
            message: format!("Upload {}", name.display()),
        })
    }

    /// Sends what is new to a repository that exists.
    pub(crate) fn send(self, hub: &Hub, wait: Wait<'_>) -> anyhow::Result<Published> {
        let Self {
            folder,
            files: mut uploads,
            reference,
            message,
        } = self;
        let leaves_page = !is_ours(hub, &reference, wait)?;
        if !leaves_page {
            uploads.push(page(&folder, &reference.repo)?);
        }
        let commit = hub.upload(&reference, uploads, &message, wait)?;
        Ok(Published {
            commit,
            leaves_page,
        })
    }
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

/// Whether the page there is missing, or one that this program has written.
fn is_ours(hub: &Hub, reference: &Reference, wait: Wait<'_>) -> anyhow::Result<bool> {
    let snapshot = hub.resolve(reference, wait)?;
    if snapshot.file(README).is_none() {
        return Ok(true);
    }
    let path = hub.download(&snapshot, README, wait)?;
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
