//! From a path or a glob to files.

use std::path::PathBuf;

use crate::error::DataError;

/// The files that `pattern` names, sorted. A folder is an error.
pub(crate) fn find(key: &'static str, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let path = PathBuf::from(pattern);
    if path.is_dir() {
        return Err(DataError::IsFolder { key, path });
    }
    // A file may have brackets in its name, so a name that exists is taken as it is.
    if path.exists() {
        return Ok(vec![path]);
    }
    if !pattern.contains(['*', '?', '[']) {
        return Err(DataError::NoSuchFile { key, path });
    }
    let bad_pattern = |error: glob::PatternError| DataError::BadValue {
        key,
        message: format!("{pattern} is not a glob: {error}"),
    };
    let mut files = Vec::new();
    for entry in glob::glob(pattern).map_err(bad_pattern)? {
        let path = entry.map_err(|error| DataError::Io {
            path: error.path().to_owned(),
            source: error.into(),
        })?;
        if path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(DataError::NoMatch {
            key,
            pattern: pattern.to_owned(),
        });
    }
    files.sort();
    Ok(files)
}
