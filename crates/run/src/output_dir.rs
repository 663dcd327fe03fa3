//! Where a run would work if it started afresh, and where earlier ones like it have.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// `hydra.run.dir`, or `hydra.sweep.dir`.
#[derive(Clone, Copy, Debug)]
pub struct OutputDir<'a> {
    pub path: &'a Path,
    /// How many of its last folders are named for the time; 0 if the user gave the whole name.
    pub folders_by_clock: usize,
}

impl<'a> OutputDir<'a> {
    /// `pattern` is the key's value as it was written, before interpolation.
    pub fn new(path: &'a str, pattern: &str) -> Self {
        let path = Path::new(path);
        let by_name = match pattern.find("${now:") {
            Some(clock) => pattern[..clock].matches('/').count(),
            None => usize::MAX,
        };
        Self {
            path,
            folders_by_clock: path.components().count().saturating_sub(by_name),
        }
    }

    /// Whether the user gave the whole name of the folder.
    pub fn is_given(&self) -> bool {
        self.folders_by_clock == 0
    }

    /// The folders that earlier commands have made where this one would, newest first: they are named for the time. A
    /// folder that cannot be looked into goes to `notes`.
    pub fn earlier_folders(&self, notes: &mut Vec<String>) -> Vec<PathBuf> {
        // `outputs`, for `outputs/DATE/TIME`.
        let Some(root) = self.path.ancestors().nth(self.folders_by_clock) else {
            return Vec::new();
        };
        let mut folders = vec![root.to_owned()];
        for _ in 0..self.folders_by_clock {
            let mut below = Vec::new();
            for folder in &folders {
                match subfolders(folder) {
                    Ok(found) => below.extend(found),
                    Err(error) => notes.push(format!(
                        "warning: no run in {} can go on: {error}",
                        folder.display()
                    )),
                }
            }
            folders = below;
        }
        folders.sort_unstable_by(|a, b| b.cmp(a));
        folders
    }
}

/// Empty if there is no such folder.
pub(crate) fn subfolders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    let paths = paths.collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_the_name_that_the_clock_gives_is_counted() {
        let by_clock = |run_dir, pattern| OutputDir::new(run_dir, pattern).folders_by_clock;
        assert_eq!(
            by_clock("outputs/2026-01-31/12-00-00", "outputs/${now:%F}/${now:%T}"),
            2
        );
        assert_eq!(by_clock("runs/big-12-00-00", "runs/${name}-${now:%T}"), 1);
        assert_eq!(by_clock("runs/big", "runs/${name}"), 0);
    }
}
