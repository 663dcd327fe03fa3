//! The cache shared with Python's `huggingface_hub`.
//!
//! ```text
//! models--user--name/refs/main                     the commit that main was last seen at
//!                    trees/COMMIT.json             what is in it
//!                    blobs/OID                     contents, and OID.incomplete
//!                    snapshots/COMMIT/config.json  -> ../../blobs/OID
//! .locks/models--user--name/OID.lock               held, with flock(2), by whoever writes blobs/OID
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::HubError;
use crate::oid::Oid;
use crate::reference::Repo;
use crate::snapshot::HubFile;
use crate::task::Task;

const TREE_FORMAT: u32 = 1;
const POLL: Duration = Duration::from_millis(100);

/// The part of the cache that is of one repository.
pub(crate) struct RepoCache {
    root: PathBuf,
    folder: String,
}

/// `trees/COMMIT.json`, in Python's words.
#[derive(Deserialize, Serialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, TreeFile>,
}

#[derive(Deserialize, Serialize)]
struct TreeFile {
    size: u64,
    blob_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    xet_hash: Option<String>,
}

impl RepoCache {
    pub(crate) fn new(root: &Path, repo: &Repo) -> Self {
        Self {
            root: root.to_owned(),
            folder: format!("{}--{}", repo.kind.plural(), repo.id.replace('/', "--")),
        }
    }

    fn path(&self) -> PathBuf {
        self.root.join(&self.folder)
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path().join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, oid: &Oid) -> PathBuf {
        self.path().join("blobs").join(oid.hex())
    }

    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.path().join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// A cache that cannot be written serves as it is.
    pub(crate) fn remember(&self, revision: &str, commit: &str) {
        if revision != commit && self.commit(revision).as_deref() != Some(commit) {
            let path = self.path().join("refs").join(revision);
            let _ = tt_disk::create_dir(tt_disk::parent(&path))
                .and_then(|()| tt_disk::write_file(&path, commit.as_bytes()));
        }
    }

    fn tree_path(&self, commit: &str) -> PathBuf {
        self.path().join("trees").join(format!("{commit}.json"))
    }

    /// What is in a commit, if it was listed before, by whomever.
    pub(crate) fn files(&self, commit: &str) -> Option<Vec<HubFile>> {
        let tree: Tree = tt_disk::read_json(&self.tree_path(commit)).ok()?;
        if tree.format_version != TREE_FORMAT {
            return None;
        }
        let file = |(path, file): (String, TreeFile)| {
            crate::reference::check_path(&path).ok()?;
            let oid = file.lfs_sha256.as_deref().unwrap_or(&file.blob_id);
            Some(HubFile {
                path,
                size: file.lfs_size.unwrap_or(file.size),
                oid: Some(Oid::from_etag(oid)?),
                blob_id: Some(file.blob_id),
                xet_hash: file.xet_hash,
            })
        };
        tree.files.into_iter().map(file).collect()
    }

    /// A cache that cannot be written serves as it is.
    pub(crate) fn remember_files(&self, commit: &str, files: &[HubFile]) {
        let entry = |file: &HubFile| {
            let sha256 = match &file.oid {
                Some(Oid::Sha256(hex)) => Some(hex.clone()),
                _ => None,
            };
            let entry = TreeFile {
                size: file.size,
                blob_id: file.blob_id.clone()?,
                lfs_size: sha256.is_some().then_some(file.size),
                lfs_sha256: sha256,
                xet_hash: file.xet_hash.clone(),
            };
            Some((file.path.clone(), entry))
        };
        let path = self.tree_path(commit);
        if let Some(files) = files.iter().map(entry).collect() {
            let tree = Tree {
                format_version: TREE_FORMAT,
                files,
            };
            let _ = tt_disk::create_dir(tt_disk::parent(&path))
                .and_then(|()| tt_disk::write_json(&path, &tree));
        }
    }

    /// The files of a commit that are here, where nobody listed it.
    pub(crate) fn files_here(&self, commit: &str) -> io::Result<Vec<HubFile>> {
        let root = self.snapshot(commit);
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let Ok(metadata) = fs::metadata(&path) else {
                    continue; // a link to what was removed
                };
                if metadata.is_dir() {
                    folders.push(path);
                    continue;
                }
                let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str) else {
                    continue;
                };
                found.push(HubFile {
                    path: name.to_owned(),
                    size: metadata.len(),
                    oid: None,
                    blob_id: None,
                    xet_hash: None,
                });
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Waits until no other process writes the content `oid`. An error if the one that does gets nothing done.
    pub(crate) fn lock(&self, task: &Task, oid: &Oid) -> Result<Lock, HubError> {
        let folder = self.root.join(".locks").join(&self.folder);
        tt_disk::create_dir(&folder)?;
        let path = folder.join(format!("{}.lock", oid.hex()));
        let file = open_lock(&path).map_err(HubError::disk("open", &path))?;
        let mut seen = (0, Instant::now());
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { file: Some(file) }),
                Err(TryLockError::WouldBlock) => (),
                // Of file systems without locks. Each process then has a partial file of its own.
                Err(TryLockError::Error(_)) => return Ok(Lock { file: None }),
            }
            let written = self.written_bytes(oid);
            if written != seen.0 {
                seen = (written, Instant::now());
            }
            let waited = seen.1.elapsed();
            if waited > task.http.settings.patience.lock {
                return Err(HubError::Locked { path, waited });
            }
            task.sleep(POLL)?;
        }
    }

    /// Of the content `oid`, in all partial files.
    fn written_bytes(&self, oid: &Oid) -> u64 {
        let entries = fs::read_dir(self.path().join("blobs"))
            .into_iter()
            .flatten();
        let is_of =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(oid.hex());
        let partial = entries.flatten().filter(is_of);
        partial
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }

    /// Makes the content `oid` the file `path` of a commit.
    pub(crate) fn link(
        &self,
        commit: &str,
        path: &str,
        oid: &Oid,
        symlinks: bool,
    ) -> Result<PathBuf, HubError> {
        let pointer = self.snapshot(commit).join(path);
        let blob = self.blob(oid);
        let folder = tt_disk::parent(&pointer);
        tt_disk::create_dir(folder)?;
        let place = || -> io::Result<()> {
            if symlinks {
                let depth = path.split('/').count() + 1;
                let target = Path::new(&"../".repeat(depth))
                    .join("blobs")
                    .join(oid.hex());
                let temp = folder.join(format!(".{}.{}.tmp", oid.hex(), std::process::id()));
                let _ = fs::remove_file(&temp);
                if symlink(&target, &temp).is_ok() {
                    return fs::rename(&temp, &pointer);
                }
            }
            fs::rename(&blob, &pointer)
        };
        place().map_err(HubError::disk("write", &pointer))?;
        tt_disk::sync_dir(folder)?;
        Ok(pointer)
    }
}

/// Held until it is dropped.
pub(crate) struct Lock {
    file: Option<File>,
}

impl Lock {
    /// Where the content that is to be `blob` gathers.
    pub(crate) fn partial(&self, blob: &Path) -> PathBuf {
        let mut name = blob.as_os_str().to_owned();
        if self.file.is_none() {
            name.push(format!(".{}", std::process::id()));
        }
        name.push(".incomplete");
        name.into()
    }
}

/// Others who share the cache may only be able to read it; that is enough to lock it.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
    options
        .open(path)
        .or_else(|error| File::open(path).map_err(|_| error))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a revision is a commit, which never changes.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40
        && revision
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
