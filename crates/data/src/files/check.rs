//! Whether files are there, before anything is opened.

use std::path::PathBuf;

use super::find;
use crate::config::DataConfig;
use crate::error::DataError;

/// Checks that the files which a built-in source, and a tokenizer, are to be read from are there. Opens none.
pub fn check_files(config: &DataConfig) -> Result<(), DataError> {
    if let Some(path) = config.tokenizer.path.as_deref().map(PathBuf::from)
        && !path.exists()
    {
        let key = "data.tokenizer.path";
        return Err(DataError::NoSuchFile { key, path });
    }
    let takes_folders = match config.dataset.url.as_str() {
        "text" => false,
        "parquet" | "arrow" | "jsonl" | "files" => true,
        // What a path means to other sources is theirs to say.
        _ => return Ok(()),
    };
    for (key, pattern) in [
        ("data.path", &config.path),
        ("data.val_path", &config.val_path),
    ] {
        if let Some(pattern) = pattern
            && !(takes_folders && PathBuf::from(pattern).is_dir())
        {
            find(key, pattern)?;
        }
    }
    Ok(())
}
