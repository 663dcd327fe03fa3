//! The Hugging Face Hub: repositories named, listed, downloaded into the cache shared with Python, and committed to.
//!
//! Everything waits in bounded time, may be called off at any moment, and goes on where it was broken off. Nothing is
//! published in the cache before its length and its hash are what the Hub says. The token is sent to the Hub alone and
//! shown nowhere.
//!
//! ```no_run
//! use tt_hub::{Hub, Reference, RepoKind, Wait};
//!
//! let hub = Hub::from_env()?;
//! let reference = Reference::parse("Qwen/Qwen2-0.5B", RepoKind::Model)?;
//! let snapshot = hub.resolve(&reference, Wait::QUIET)?;
//! let config = hub.download(&snapshot, "config.json", Wait::QUIET)?;
//! # Ok::<(), tt_hub::HubError>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cache;
mod download;
mod error;
mod http;
mod oid;
mod reference;
mod settings;
mod snapshot;
mod task;
mod upload;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use error::HubError;
pub use oid::Oid;
pub use reference::{DEFAULT_REVISION, Reference, Repo, RepoKind};
pub use settings::{Patience, Settings, Token};
pub use snapshot::{HubFile, Snapshot};
pub use task::{Progress, Wait};
pub use upload::{Commit, Upload, UploadSource, Visibility};

use http::Http;

/// A client of the Hub. Copies share its connections.
#[derive(Clone)]
pub struct Hub {
    http: Arc<Http>,
}

impl Hub {
    /// As the environment says, see [`Settings`].
    pub fn from_env() -> Result<Self, HubError> {
        Ok(Self::new(Settings::from_env()?))
    }

    pub fn new(settings: Settings) -> Self {
        Self {
            http: Arc::new(Http::new(settings)),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.http.settings
    }

    /// Finds the commit that a reference means, and what is in it.
    pub fn resolve(&self, reference: &Reference, wait: Wait<'_>) -> Result<Snapshot, HubError> {
        let reference = reference.clone();
        task::run(&self.http, wait, move |task| {
            snapshot::resolve(task, &reference)
        })
    }

    /// The path of a file, downloaded unless it is there. The files of a snapshot lie as they do in the repository, below
    /// [`Hub::folder`].
    pub fn download(
        &self,
        snapshot: &Snapshot,
        path: &str,
        wait: Wait<'_>,
    ) -> Result<PathBuf, HubError> {
        let (snapshot, path) = (snapshot.of(path), path.to_owned());
        task::run(&self.http, wait, move |task| {
            download::download(task, &snapshot, &path)
        })
    }

    /// `length` bytes of a file from `start` on, without the rest: of what is being downloaded, or is too much to be.
    pub fn read_at(
        &self,
        snapshot: &Snapshot,
        path: &str,
        start: u64,
        length: usize,
        wait: Wait<'_>,
    ) -> Result<Vec<u8>, HubError> {
        let (snapshot, path) = (snapshot.of(path), path.to_owned());
        task::run(&self.http, wait, move |task| {
            download::read_at(task, &snapshot, &path, start, length)
        })
    }

    /// Makes a repository that only its owner sees, unless `is_private` is false. One that is there stays as it is. Tells
    /// who sees it now.
    pub fn create_repo(
        &self,
        repo: &Repo,
        is_private: bool,
        wait: Wait<'_>,
    ) -> Result<Visibility, HubError> {
        let repo = repo.clone();
        self.online(&repo)?;
        task::run(&self.http, wait, move |task| {
            upload::create_repo(task, &repo, is_private)
        })
    }

    /// Whether the branch that `reference` names may be uploaded to. Nothing is.
    pub fn check_writable(&self, reference: &Reference, wait: Wait<'_>) -> Result<(), HubError> {
        let reference = reference.clone();
        self.online(&reference.repo)?;
        task::run(&self.http, wait, move |task| {
            upload::check_writable(task, &reference)
        })
    }

    /// Makes `uploads` files of the branch that `reference` names, in one commit, if any of them is new or different there.
    pub fn upload(
        &self,
        reference: &Reference,
        uploads: Vec<Upload>,
        summary: &str,
        wait: Wait<'_>,
    ) -> Result<Commit, HubError> {
        let (reference, summary) = (reference.clone(), summary.to_owned());
        self.online(&reference.repo)?;
        task::run(&self.http, wait, move |task| {
            upload::upload(task, &reference, &uploads, &summary)
        })
    }

    fn online(&self, repo: &Repo) -> Result<(), HubError> {
        match self.settings().offline {
            Some(variable) => Err(HubError::Forbade {
                repo: repo.clone(),
                variable,
            }),
            None => Ok(()),
        }
    }

    /// The path of a file, if it has been downloaded.
    pub fn find(&self, snapshot: &Snapshot, path: &str) -> Option<PathBuf> {
        let file = snapshot.file(path)?;
        let place = self.folder(snapshot).join(path);
        download::is_of_size(&place, file.size).then_some(place)
    }

    /// Where the files of a snapshot are that have been downloaded.
    pub fn folder(&self, snapshot: &Snapshot) -> PathBuf {
        let cache = cache::RepoCache::new(&self.http.settings.cache, &snapshot.repo);
        cache.snapshot(&snapshot.commit)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("settings", self.settings())
            .finish()
    }
}
