//! Everything that can go wrong with the Hub: where, what, and what next.
//!
//! No message holds a token or the query of an address, which of storage behind the Hub is a signature.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::reference::Repo;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    #[error("`{text}` names nothing on the Hub: {why}")]
    Reference { text: String, why: String },

    #[error("{variable}: {why}")]
    Setting { variable: &'static str, why: String },

    /// Without a token the Hub does not tell private from missing.
    #[error(
        "{repo}: there is no such repository, or it is private{}",
        if *has_token { " and the token in use may not see it" } else { ": to see private ones, set HF_TOKEN" }
    )]
    NoRepo { repo: Repo, has_token: bool },

    #[error("{repo}: there is no revision `{revision}`")]
    NoRevision { repo: Repo, revision: String },

    #[error("{repo}: there is no file `{path}` at revision `{revision}`")]
    NoFile {
        repo: Repo,
        revision: String,
        path: String,
    },

    #[error(
        "{repo}: access has to be asked for: accept the terms on {page}, then {}",
        if *has_token { "check that the token in use is of that account and may read gated repositories" } else { "set HF_TOKEN to a token of that account" }
    )]
    Gated {
        repo: Repo,
        page: String,
        has_token: bool,
    },

    #[error(
        "{repo}: the Hub does not accept the token: {why}; make one at {page} and set HF_TOKEN"
    )]
    Unauthorized {
        repo: Repo,
        why: String,
        page: String,
    },

    #[error("{repo}: not allowed: {why}; {}", if *has_token { "the token in use lacks the right to do this" } else { "set HF_TOKEN" })]
    Forbidden {
        repo: Repo,
        why: String,
        has_token: bool,
    },

    #[error("{what} is not in the cache at {}, and {variable} forbids to ask the Hub: run once without it", cache.display())]
    Offline {
        what: String,
        cache: PathBuf,
        variable: &'static str,
    },

    #[error("{repo}: nothing can be sent, as {variable} forbids to ask the Hub: run without it")]
    Forbade { repo: Repo, variable: &'static str },

    /// Nothing arrived, however often it was tried.
    #[error("{url}: {why}, in each of {attempts} attempts")]
    Unreachable {
        url: String,
        attempts: u32,
        why: String,
    },

    #[error(
        "{url}: no trusted connection: {why}; where a proxy signs connections, set SSL_CERT_FILE to its certificates"
    )]
    Untrusted { url: String, why: String },

    #[error("{url}: the Hub answers {status}: {why}")]
    Status {
        url: String,
        status: u16,
        why: String,
    },

    #[error("{url}: the answer is not what the Hub gives: {why}")]
    Answer { url: String, why: String },

    /// What arrived is not what the Hub says it is. Nothing of it is kept.
    #[error("{url}: damaged on the way: {why}; nothing of it was kept, so try again")]
    Corrupt { url: String, why: String },

    #[error("{}: another process holds this lock and has got nothing done for {} s; end it, or remove the file if there is none", path.display(), waited.as_secs())]
    Locked { path: PathBuf, waited: Duration },

    #[error("cannot {action} {}{}", path.display(), advice(source))]
    Disk {
        /// Completes "cannot ...".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    #[error("{}: it changed while it was being uploaded", path.display())]
    Changed { path: PathBuf },

    #[error("interrupted")]
    Interrupted,
}

impl HubError {
    /// What becomes of an error in doing `action` to `path`.
    pub(crate) fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk {
            action,
            path,
            source,
        }
    }
}

impl From<tt_disk::Error> for HubError {
    fn from(error: tt_disk::Error) -> Self {
        match error {
            tt_disk::Error::Io {
                action,
                path,
                source,
            } => Self::Disk {
                action,
                path,
                source,
            },
            tt_disk::Error::Read { path, source } => Self::Disk {
                action: "read",
                path,
                source,
            },
        }
    }
}

/// What to do about a cache that cannot be written.
fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            ": the disk is full; make room, or set HF_HUB_CACHE to a folder on another"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ": set HF_HUB_CACHE to a folder that can be written"
        }
        _ => "",
    }
}
