//! The end of a `metrics.jsonl`, also while it is written.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use serde_json::Value;

/// More than the last few rows take.
const TAIL_BYTES: u64 = 16 * 1024;

/// The last of the newest rows that has `key`.
pub fn last_row_with(path: &Path, key: &str) -> Option<Value> {
    let tail = tail(path).ok()?;
    // The first piece may be half a row, and the last one half written; neither reads as JSON.
    let rows = tail.rsplit(|&byte| byte == b'\n');
    rows.filter_map(|row| serde_json::from_slice::<Value>(row).ok())
        .find(|row| row.get(key).is_some())
}

fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_record_is_read_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let row = |step| format!("{{\"step\":{step},\"loss\":1.0}}\n");
        let rows: String = (1..=10_000).map(row).collect();
        std::fs::write(&path, rows).unwrap();
        assert_eq!(last_row_with(&path, "loss").unwrap()["step"], 10_000);
        assert_eq!(last_row_with(&path, "val_loss"), None);
    }
}
