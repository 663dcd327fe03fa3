//! Small file systems of their own, for tests of full and read-only disks.
//!
//! Mounting takes a privilege that everyone has in a user namespace of their own: the test program is started once more
//! in one, to run that single test. What it mounts nobody else sees, and it is gone with the process.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Set where the test program may mount.
const MAY_MOUNT: &str = "TT_TEST_MAY_MOUNT";

/// Runs `body` where it may mount; `name` is the name of the test that calls this, as the test program lists it.
///
/// Where the system has no user namespaces the test passes and says so; with `CI` set it fails.
pub fn in_own_mounts(name: &str, body: impl FnOnce()) {
    if std::env::var_os(MAY_MOUNT).is_some() {
        return body();
    }
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount"]).arg(program);
        command
    };
    let probe = unshare(Path::new("true")).output();
    if !probe.as_ref().is_ok_and(|probe| probe.status.success()) {
        assert!(
            std::env::var_os("CI").is_none(),
            "unshare --map-root-user --mount: {probe:?}"
        );
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let output = unshare(&std::env::current_exe().expect("a test program"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(MAY_MOUNT, "1")
        .output()
        .expect("started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(
        stdout.contains("1 passed"),
        "no test is named {name}: {stdout}"
    );
}

/// A file system in memory. Only within [`in_own_mounts`].
pub struct SmallDisk(TempDir);

impl SmallDisk {
    pub fn mount(kilobytes: usize) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let size = format!("size={kilobytes}k");
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], dir.path());
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives it another size, with all that is on it.
    pub fn resize(&self, kilobytes: usize) {
        mount(&["-o", &format!("remount,size={kilobytes}k")], self.path());
    }
}

/// Lets nothing be written below `path` any more, by root neither.
pub fn make_read_only(path: &Path) {
    // Elsewhere first: a mount on which a file is being written cannot be made read-only.
    let aside = tempfile::tempdir().expect("a temporary folder");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    mount(&["--bind", &text(path)], aside.path());
    mount(&["-o", "remount,bind,ro"], aside.path());
    mount(&["--move", &text(aside.path())], path);
}

fn mount(args: &[&str], at: &Path) {
    let output = Command::new("mount").args(args).arg(at).output();
    let output = output.expect("mount(8)");
    assert!(output.status.success(), "mount {args:?}: {output:?}");
}
