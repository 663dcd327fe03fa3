//! A repository at one commit: which files it has, and what each must be.

use std::collections::HashSet;

use serde::Deserialize;

use crate::HubError;
use crate::cache::{RepoCache, is_commit};
use crate::http::{About, quoted};
use crate::oid::Oid;
use crate::reference::{Reference, Repo, check_path};
use crate::task::Task;

/// As the Hub writes its own address into links, whatever mirror is asked.
const HUB: &str = "https://huggingface.co/";

/// A file of a repository.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubFile {
    /// Parts joined by `/`.
    pub path: String,
    pub size: u64,
    /// None: only what lies in the cache is known of it.
    pub oid: Option<Oid>,
    pub(crate) blob_id: Option<String>,
    pub(crate) xet_hash: Option<String>,
}

/// A repository at one commit.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub repo: Repo,
    /// As it was asked for.
    pub revision: String,
    pub commit: String,
    /// By path.
    pub files: Vec<HubFile>,
}

impl Snapshot {
    pub fn file(&self, path: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The same with no file but this one: of many files, only the one that is wanted.
    pub(crate) fn of(&self, path: &str) -> Self {
        Self {
            files: self.file(path).cloned().into_iter().collect(),
            repo: self.repo.clone(),
            revision: self.revision.clone(),
            commit: self.commit.clone(),
        }
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<Lfs>,
    #[serde(rename = "xetHash")]
    xet_hash: Option<String>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Finds out which commit a reference means and what is in it; of a commit that was listed before, without the Hub.
pub(crate) fn resolve(task: &Task, reference: &Reference) -> Result<Snapshot, HubError> {
    let settings = &task.http.settings;
    let Reference { repo, revision, .. } = reference;
    let cache = RepoCache::new(&settings.cache, repo);
    let snapshot = |commit: String, files| Snapshot {
        repo: repo.clone(),
        revision: revision.clone(),
        commit,
        files,
    };
    if let Some(variable) = settings.offline {
        let commit = if is_commit(revision) {
            Some(revision.clone())
        } else {
            cache.commit(revision)
        };
        let found = commit.and_then(|commit| {
            let files = cache
                .files(&commit)
                .or_else(|| cache.files_here(&commit).ok())?;
            Some(snapshot(commit, files))
        });
        return found.ok_or_else(|| HubError::Offline {
            what: format!("{repo} at revision `{revision}`"),
            cache: settings.cache.clone(),
            variable,
        });
    }
    let commit = if is_commit(revision) {
        revision.clone()
    } else {
        head(task, reference)?
    };
    cache.remember(revision, &commit);
    let files = match cache.files(&commit) {
        Some(files) => files,
        None => {
            let files = list(task, repo, revision, &commit)?;
            cache.remember_files(&commit, &files);
            files
        }
    };
    Ok(snapshot(commit, files))
}

/// The commit that a revision means now.
pub(crate) fn head(task: &Task, reference: &Reference) -> Result<String, HubError> {
    let Reference { repo, revision, .. } = reference;
    let url = task.http.url(&format!(
        "{}/revision/{}",
        repo.api(),
        quoted(revision, true)
    ));
    let (info, _): (Info, _) = task.json("GET", &url, None, &about(repo, revision))?;
    if !is_commit(&info.sha) {
        let why = format!("`{}` is no commit", info.sha);
        return Err(HubError::Answer { url, why });
    }
    Ok(info.sha)
}

/// Asks what is in a commit, page by page.
pub(crate) fn list(
    task: &Task,
    repo: &Repo,
    revision: &str,
    commit: &str,
) -> Result<Vec<HubFile>, HubError> {
    let mut url = task.http.url(&format!(
        "{}/tree/{commit}?recursive=true&expand=false",
        repo.api()
    ));
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    loop {
        let wrong = |why| HubError::Answer {
            url: url.clone(),
            why,
        };
        if !seen.insert(url.clone()) {
            return Err(wrong("its pages go round in a circle".into()));
        }
        let (entries, headers): (Vec<Entry>, _) =
            task.json("GET", &url, None, &about(repo, revision))?;
        for entry in entries {
            if entry.kind == "file" {
                check_path(&entry.path).map_err(|why| wrong(format!("`{}`: {why}", entry.path)))?;
                files.push(file(entry).map_err(wrong)?);
            }
        }
        let link = headers.get("link").and_then(|link| link.to_str().ok());
        match link.and_then(next_page) {
            None => break,
            Some(next) => {
                url = match next.strip_prefix(HUB) {
                    Some(rest) => task.http.url(rest),
                    None => next.to_owned(),
                }
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn file(entry: Entry) -> Result<HubFile, String> {
    let (oid, size) = match &entry.lfs {
        Some(lfs) => (
            lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid),
            lfs.size,
        ),
        None => (entry.oid.as_str(), entry.size),
    };
    let oid = Oid::from_etag(oid).ok_or_else(|| format!("`{oid}` is no hash of {}", entry.path))?;
    Ok(HubFile {
        size,
        oid: Some(oid),
        path: entry.path,
        blob_id: Some(entry.oid),
        xet_hash: entry.xet_hash,
    })
}

pub(crate) fn about(repo: &Repo, revision: &str) -> About {
    About {
        repo: repo.clone(),
        revision: revision.to_owned(),
        path: None,
    }
}

/// Of `<a>; rel="prev", <b>; rel="next"` it is b.
fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, rest) = part.trim().strip_prefix('<')?.split_once('>')?;
        rest.contains("rel=\"next\"").then_some(address)
    })
}
