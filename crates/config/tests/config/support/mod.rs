//! Trees of config files in a temporary folder.

use tempfile::TempDir;
use tt_config::Composer;

/// A folder with `configs/` in it. Messages show paths from the folder.
pub struct Tree {
    folder: TempDir,
}

impl Tree {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = folder.path().join("configs").join(path);
            let parent = path.parent().expect("a file is in a folder");
            std::fs::create_dir_all(parent).expect("the folder can be made");
            std::fs::write(&path, text).expect("the file can be written");
        }
        Tree { folder }
    }

    #[allow(dead_code)] // not every test that includes this file needs it
    pub fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Composes `default.yaml`; no environment variables are set.
    pub fn composer(&self) -> Composer {
        Composer::new("default")
            .current_directory(self.folder.path())
            .directory("main", self.folder.path().join("configs"))
            .variables([("TT_STEPS", "many")])
    }
}
