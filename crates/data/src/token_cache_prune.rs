//! Removes token caches that no run has used for a while. Nothing else in their folder is touched.
//!
//! A cache is used when it is opened, which is when its folder was last changed ([`mark_used`]). A run whose cache is removed
//! encodes its rows as without one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::DataError;

/// A cache that is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedCache {
    /// Its folder.
    pub folder: PathBuf,
    /// What it took.
    pub bytes: u64,
}

/// Removes the caches in `root` that have not been used for `age`. Errors: a file that cannot be removed.
pub fn prune_token_caches(root: &Path, age: Duration) -> Result<Vec<PrunedCache>, DataError> {
    let mut pruned = Vec::new();
    for folder in entries(root)? {
        let metadata = folder.metadata().map_err(DataError::io(&folder))?;
        let used = metadata.modified().map_err(DataError::io(&folder))?;
        let since = SystemTime::now().duration_since(used).unwrap_or_default();
        if !is_cache(&folder)? || since < age {
            continue;
        }
        let mut bytes = 0;
        for file in entries(&folder)? {
            bytes += file.metadata().map_or(0, |it| it.len());
            fs::remove_file(&file).map_err(DataError::io(&file))?;
        }
        fs::remove_dir(&folder).map_err(DataError::io(&folder))?;
        pruned.push(PrunedCache { folder, bytes });
    }
    Ok(pruned)
}

/// Says that a cache is in use, where its folder may be written to.
pub(crate) fn mark_used(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.set_modified(SystemTime::now());
    }
}

/// Whether a folder is called as a cache is, and holds what a cache does and nothing else.
fn is_cache(folder: &Path) -> Result<bool, DataError> {
    let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
    let is_hash = name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit);
    if !is_hash || !folder.is_dir() {
        return Ok(false);
    }
    let is_part = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let ends = [".tokens", ".damaged"];
        name.starts_with(super::token_cache::PARTIAL) || ends.iter().any(|end| name.ends_with(end))
    };
    Ok(entries(folder)?.iter().all(is_part))
}

/// What is in a folder, in order; nothing if there is none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(DataError::io(folder)(error)),
    };
    let paths = entries.map(|entry| entry.map(|it| it.path()));
    let mut paths = paths
        .collect::<io::Result<Vec<_>>>()
        .map_err(DataError::io(folder))?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_that_are_not_used_go_and_all_else_stays() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str, file: &str| {
            let folder = root.path().join(folder);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(file), "0123456789").unwrap();
            folder
        };
        let hash = |digit: &str| digit.repeat(32);
        let old = make(&hash("a"), "00000.tokens");
        let used = make(&hash("b"), "00000.tokens");
        let no_cache = make(&hash("c"), "notes.txt");
        let other = make("runs", "00000.tokens");
        let long_ago = SystemTime::now() - Duration::from_secs(100);
        for folder in [&old, &used, &no_cache, &other] {
            let folder = File::open(folder).unwrap();
            folder.set_modified(long_ago).unwrap();
        }
        mark_used(&used);
        let pruned = prune_token_caches(root.path(), Duration::from_secs(50)).unwrap();
        let expected = PrunedCache {
            folder: old.clone(),
            bytes: 10,
        };
        assert_eq!(pruned, [expected]);
        assert!(!old.exists() && used.exists() && no_cache.exists() && other.exists());
        let nowhere = prune_token_caches(&root.path().join("none"), Duration::ZERO);
        assert_eq!(nowhere.unwrap(), []);
    }
}
