//! Files and folders that are whole or absent after a kill or a power cut.
//!
//! A file is written under another name, synced and renamed; then the entry in its folder is synced, without which the
//! new name may not be there after the power cut. Only Unix has the notion of the latter, and needs it. A symbolic link stays
//! and the file that it leads to is replaced; a pipe or a device cannot be replaced and is written to.
//!
//! ```
//! # let tmp = tempfile::tempdir()?;
//! let folder = tmp.path().join("runs/today");
//! tt_disk::create_dir(&folder)?;
//! tt_disk::write_json(&folder.join("lr.json"), &5e-5)?;
//! assert_eq!(tt_disk::read_json::<f64>(&folder.join("lr.json"))?, 5e-5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Completes "cannot ...": "write", "replace".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// The file cannot be read, or is not what it should be.
    #[error("{}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

impl Error {
    /// What becomes of an error in doing `action` to `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// The cause alone, for errors that name the path themselves.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let (Error::Io { source, .. } | Error::Read { source, .. }) = error;
        source
    }
}

/// Links after one another, as Linux follows them at most.
const MOST_LINKS: usize = 40;

/// Replaces `path` by what `fill` writes: after a kill or a power cut it is the old file or the new one. What is no file, a
/// pipe or a device, is written to instead.
pub fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let Some(path) = &file_behind(path).map_err(Error::io("write", path))? else {
        return write_into(path, fill).map_err(Error::io("write", path));
    };
    let temp = temp_beside(path);
    let write = || {
        let mut file = BufWriter::new(File::create(&temp)?);
        fill(&mut file)?;
        file.into_inner()?.sync_all()
    };
    let replaced = write()
        .map_err(Error::io("write", &temp))
        .and_then(|()| fs::rename(&temp, path).map_err(Error::io("replace", path)));
    if replaced.is_err() {
        let _ = fs::remove_file(&temp); // the first error is the one to report
    }
    replaced?;
    sync_dir(parent(path))
}

/// Whether [`replace`] could begin, found out before the work that is to be written. Changes nothing.
pub fn check_replace(path: &Path) -> Result<()> {
    match file_behind(path).map_err(Error::io("write", path))? {
        Some(file) => {
            let temp = temp_beside(&file);
            File::create(&temp)
                .and_then(|_| fs::remove_file(&temp))
                .map_err(Error::io("write", path))
        }
        None if path.is_dir() => {
            let is_folder = io::Error::from(io::ErrorKind::IsADirectory);
            Err(Error::io("write", path)(is_folder))
        }
        None => Ok(()),
    }
}

/// The name of what is to become `path`. Two processes may write the same file; each then has its own, and the last to rename
/// wins.
fn temp_beside(path: &Path) -> PathBuf {
    let mut temp = path.as_os_str().to_owned();
    temp.push(format!(".tmp-{}", std::process::id()));
    temp.into()
}

/// The file, there or not, that links from `path` end at; `None` where they end at something else.
fn file_behind(path: &Path) -> io::Result<Option<PathBuf>> {
    if fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        return Ok(None);
    }
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(link) = fs::read_link(&path) else {
            return Ok(Some(path));
        };
        // A process's open files, such as /dev/stdout, whose writer would go on with the file that was replaced.
        if path.starts_with("/proc") || path.starts_with("/dev/fd") {
            return Ok(None);
        }
        path = parent(&path).join(link);
    }
    Err(io::Error::other("its symbolic links have no end"))
}

/// After what is there: standard output, by its name, may be a file with something in it.
fn write_into(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::new(File::options().append(true).open(path)?);
    fill(&mut file)?;
    file.flush()
}

/// Replaces `path` by a file of these bytes.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Replaces `path` by `value` as indented JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    replace(path, |file| {
        serde_json::to_writer_pretty(&mut *file, value)?;
        file.write_all(b"\n")
    })
}

/// Reads a file of JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || Ok(serde_json::from_slice(&fs::read(path)?)?);
    read().map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// Makes the folder and those above it that are missing, durably. It may be there already.
pub fn create_dir(dir: &Path) -> Result<()> {
    let missing: Vec<_> = dir
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    fs::create_dir_all(dir).map_err(Error::io("create folder", dir))?;
    missing
        .into_iter()
        .try_for_each(|made| sync_dir(parent(made)))
}

/// Makes the names inside `dir` durable.
pub fn sync_dir(dir: &Path) -> Result<()> {
    #[cfg(unix)]
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync folder", dir))?;
    let _ = dir;
    Ok(())
}

/// The folder that `path` is an entry of.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_json(&path, &[1, 2]).unwrap();
        let failed = replace(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(failed.is_err());
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), [1, 2]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_the_file_that_it_leads_to_is_replaced() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("there")).unwrap();
        fs::write(at("there/old.json"), "0").unwrap();
        symlink("there/old.json", at("link")).unwrap();
        symlink(at("link"), at("link-to-link")).unwrap();
        symlink("there/new.json", at("dangling")).unwrap();
        for (link, file) in [
            ("link", "there/old.json"),
            ("link-to-link", "there/old.json"),
            ("dangling", "there/new.json"),
        ] {
            check_replace(&at(link)).unwrap();
            write_json(&at(link), &link).unwrap();
            assert!(at(link).is_symlink(), "{link}");
            assert!(!at(file).is_symlink(), "{link}");
            assert_eq!(read_json::<String>(&at(file)).unwrap(), link);
        }
        assert_eq!(fs::read_dir(at("there")).unwrap().count(), 2);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        let error = write_json(&at("a"), &1).unwrap_err();
        assert!(io::Error::from(error).to_string().contains("no end"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        check_replace(&pipe).unwrap();
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || fs::read_to_string(pipe).unwrap())
        };
        write_file(&pipe, b"told").unwrap();
        assert_eq!(reader.join().unwrap(), "told");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// `/dev/stdout` leads there: whoever has the file open writes on into it.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_open_file_of_a_process_is_added_to() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("out.txt")).unwrap();
        file.write_all(b"first, ").unwrap();
        for open_files in ["/dev/fd", "/proc/self/fd"] {
            let name = Path::new(open_files).join(file.as_raw_fd().to_string());
            write_file(&name, b"then, ").unwrap();
        }
        let text = fs::read_to_string(folder.path().join("out.txt")).unwrap();
        assert_eq!(text, "first, then, then, ");
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "kept").unwrap();
        check_replace(&at("file")).unwrap();
        check_replace(&at("new")).unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        for (wrong, kind) in [
            (at("nowhere/new"), io::ErrorKind::NotFound),
            (at("file/new"), io::ErrorKind::NotADirectory),
            (folder.path().to_owned(), io::ErrorKind::IsADirectory),
        ] {
            let error = check_replace(&wrong).unwrap_err();
            let written = format!("cannot write {}", wrong.display());
            assert_eq!(error.to_string(), written);
            assert_eq!(io::Error::from(error).kind(), kind, "{written}");
        }
    }

    #[test]
    fn an_error_names_the_path_and_keeps_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not.json");
        fs::write(&path, "{").unwrap();
        let error = read_json::<std::collections::BTreeMap<String, u32>>(&path).unwrap_err();
        assert_eq!(error.to_string(), path.display().to_string());
        assert!(io::Error::from(error).to_string().contains("EOF"));
        fs::write(folder.path().join("file"), "").unwrap();
        let error = create_dir(&folder.path().join("file/folder")).unwrap_err();
        assert!(error.to_string().starts_with("cannot create folder "));
    }

    #[test]
    fn folders_are_made_with_all_above_them_and_may_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_dir(&deep).unwrap();
        create_dir(&deep).unwrap();
        assert!(deep.is_dir());
    }
}
