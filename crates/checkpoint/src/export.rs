//! A model folder for other programs: what a checkpoint holds, without the trainer's state and the manifest.

use std::path::{Path, PathBuf};

use crate::{
    data_file::InPlace,
    disk,
    error::{Error, Result},
    layout::Snapshot,
    source::TensorSource,
};

/// Writes the model of `snapshot` to the new folder `dir`, tensor by tensor; its optimizer and state are left out.
///
/// The folder gets its name when all is in it. Errors: `dir` exists and is not empty.
pub fn save_model<T: TensorSource>(
    dir: &Path,
    snapshot: Snapshot<T>,
    max_shard_bytes: u64,
) -> Result<()> {
    let is_taken = match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => dir.symlink_metadata().is_ok(),
    };
    if is_taken {
        let kind = std::io::ErrorKind::AlreadyExists;
        let source = std::io::Error::new(kind, "it is there already, and is not empty");
        return Err(Error::io("write to", dir, source));
    }
    let temp = temporary(dir);
    let (outline, tensors) = snapshot.split(max_shard_bytes);
    let written = disk::create_dir(&temp)
        .and_then(|()| outline.write_model(&temp, &mut InPlace::new(tensors)))
        .and_then(|files| disk::sync_files(&temp, &files))
        .and_then(|()| disk::sync_dir(&temp))
        .and_then(|()| disk::rename(&temp, dir))
        .and_then(|()| disk::sync_dir(tt_disk::parent(dir)));
    if written.is_err() {
        // The first error is the one to report, whatever becomes of the remains.
        let _ = disk::remove_dir(&temp);
    }
    written
}

fn temporary(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    name.into()
}
