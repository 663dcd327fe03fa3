//! Runs the binary in a temporary folder and reads what it leaves there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A model and a batch small enough for a debug build to step in milliseconds.
pub const NANO: &[&str] = &[
    "+model=qwen2",
    "model/size=nano",
    "+trainer=lm",
    "data.sequence_length=32",
    "trainer.global_batch_size=4",
    "trainer.micro_batch_size=2",
];

/// No run in these tests takes longer, even on a machine with all its cores busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// A folder to start the binary in.
pub struct Place {
    root: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary folder");
        Self { root }
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Writes a file, making the folders it lies in; gives its absolute path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file name")).expect("folders made");
        std::fs::write(&path, content).expect("file written");
        path
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tpu-train"));
        command
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null())
            // One cache for all tests: a tokenizer is trained once.
            .env(
                "XDG_CACHE_HOME",
                concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
            )
            .env_remove("RUST_BACKTRACE");
        // Tests send nothing to anybody, whatever keys a developer has.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WANDB") {
                command.env_remove(name);
            }
        }
        command
            .env("WANDB_MODE", "disabled")
            // Those that turn it on again get a key of their own, not what lies in the home folder.
            .env("NETRC", "/dev/null")
            .env("WANDB_CONFIG_DIR", "/dev/null");
        // In the cache just replaced it would not be found.
        if let Ok(sdk) = tt_tpu::sdk::Sdk::find(None) {
            command.env("SOPHGO_SDK", sdk.folder);
        }
        command
    }

    /// The binary started by bash, as `script` says, in which `"$@"` is it and its arguments.
    pub fn shell(&self, script: &str, args: &[&str]) -> Command {
        let binary = self.command(args);
        let mut command = Command::new("bash");
        command
            .args(["-c", script, "bash"])
            .arg(binary.get_program())
            .args(binary.get_args())
            .current_dir(self.path())
            .stdin(Stdio::null());
        for (name, value) in binary.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Runs to the end.
    pub fn run(&self, args: &[&str]) -> Finished {
        self.start(args).finish()
    }

    /// Runs [`NANO`] with more arguments to the end.
    pub fn run_nano(&self, more: &[&str]) -> Finished {
        self.run(&nano(more))
    }

    /// Starts [`NANO`] with more arguments.
    pub fn start_nano(&self, more: &[&str]) -> Running {
        self.start(&nano(more))
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    /// Every run folder under `outputs/`, oldest first.
    pub fn run_folders(&self) -> Vec<RunFolder> {
        let mut found: Vec<_> = entries(&self.path().join("outputs"))
            .iter()
            .flat_map(|date| entries(date))
            .map(RunFolder)
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// The run folder, where there is exactly one.
    #[track_caller]
    pub fn run_folder(&self) -> RunFolder {
        let mut found = self.run_folders();
        assert_eq!(found.len(), 1, "run folders: {found:?}");
        found.remove(0)
    }
}

/// A folder for runs on the emulator, which is this test's alone, and whose temporary files go to a folder of their own.
pub struct TpuPlace {
    pub place: Place,
    _alone: MutexGuard<'static, ()>,
}

impl TpuPlace {
    /// `None` where there is no TPU.
    pub fn open() -> Option<Self> {
        let alone = emulator()?;
        let it = Self {
            place: Place::new(),
            _alone: alone,
        };
        std::fs::create_dir(it.tmp()).expect("folder made");
        Some(it)
    }

    pub fn tmp(&self) -> PathBuf {
        self.place.path().join("tmp")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("TMPDIR", self.tmp());
        command
    }
}

/// The emulator, for one test at a time: it takes all cores. `None` where there is none.
pub fn emulator() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !tt_testkit::has_tpu() {
        return None;
    }
    // A failed test is no reason for the next one to fail.
    Some(ALONE.lock().unwrap_or_else(|poison| poison.into_inner()))
}

pub fn nano<'a>(more: &[&'a str]) -> Vec<&'a str> {
    NANO.iter().chain(more).copied().collect()
}

/// What a folder holds, sorted; nothing if it does not exist.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = listing
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

/// A process that has been started; killed when dropped.
pub struct Running {
    child: Child,
    output: TempDir,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        // Files, not pipes: a pipe nobody reads would stall the run.
        let output = tempfile::tempdir().expect("a temporary folder");
        let file = |name| std::fs::File::create(output.path().join(name)).expect("file made");
        let child = command
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("the binary starts");
        Self { child, output }
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.output.path().join(name)).expect("output");
        String::from_utf8(bytes).expect("UTF-8 output")
    }

    /// Waits until `folder` has at least `count` whole lines in its `metrics.jsonl`.
    #[track_caller]
    pub fn wait_for_rows(&mut self, folder: &RunFolder, count: usize) {
        self.wait_until(|| folder.row_count() >= count);
    }

    /// Waits until standard output says `text`.
    #[track_caller]
    pub fn wait_for_print(&mut self, text: &str) {
        let path = self.output.path().join("stdout");
        self.wait_until(|| {
            let bytes = std::fs::read(&path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(text)
        });
    }

    /// Waits until something holds; fails if the process ends before.
    #[track_caller]
    pub fn wait_until(&mut self, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            if let Some(status) = self.child.try_wait().expect("a child") {
                let stderr = self.read("stderr");
                panic!("ended with {status} while waited for; stderr:\n{stderr}");
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The most memory that the process has held so far.
    #[cfg(target_os = "linux")]
    #[track_caller]
    pub fn peak_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a process at work");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
        1024 * kib.expect("a figure").parse::<u64>().expect("a number")
    }

    pub fn is_at_work(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Sends a signal by name, such as `INT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .expect("kill(1)");
        assert!(status.success(), "kill -{name} failed");
    }

    /// Kills the process, which must still have been at work.
    #[track_caller]
    pub fn kill(mut self) {
        let ended = self.child.try_wait().expect("a child");
        assert_eq!(ended, None, "the run ended before it could be killed");
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }

    #[track_caller]
    pub fn finish(self) -> Finished {
        self.finish_within(PATIENCE)
    }

    #[track_caller]
    pub fn finish_within(mut self, patience: Duration) -> Finished {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(started.elapsed() < patience, "the run does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        Finished {
            code: status.code(),
            stdout: self.read("stdout"),
            stderr: self.read("stderr"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if the process has ended already, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        let Self { stdout, stderr, .. } = &self;
        assert_eq!(
            self.code,
            Some(code),
            "exit code; stdout:\n{stdout}\nstderr:\n{stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
        self
    }

    /// Standard output says `text`.
    #[track_caller]
    pub fn prints(self, text: &str) -> Self {
        assert!(
            self.stdout.contains(text),
            "no {text:?} in:\n{}",
            self.stdout
        );
        self
    }

    /// Standard error says `text`.
    #[track_caller]
    pub fn complains(self, text: &str) -> Self {
        assert!(
            self.stderr.contains(text),
            "no {text:?} in:\n{}",
            self.stderr
        );
        self
    }
}

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct RunFolder(pub PathBuf);

impl RunFolder {
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        let path = self.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).expect("JSON")
    }

    /// The whole lines of `metrics.jsonl` so far.
    pub fn row_count(&self) -> usize {
        let bytes = std::fs::read(self.join("metrics.jsonl")).unwrap_or_default();
        bytes.iter().filter(|&&byte| byte == b'\n').count()
    }

    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        self.read("metrics.jsonl")
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON object a line"))
            .collect()
    }

    /// The lines of `metrics.jsonl` without what depends on the clock.
    #[track_caller]
    pub fn timeless_rows(&self) -> Vec<String> {
        self.rows()
            .into_iter()
            .map(|mut row| {
                let row = row.as_object_mut().expect("an object");
                row.retain(|key, _| !tt_metrics::TIME_KEYS.contains(&key.as_str()));
                serde_json::to_string(row).expect("JSON")
            })
            .collect()
    }

    /// The folder of the final checkpoint, as the summary names it.
    #[track_caller]
    pub fn final_checkpoint(&self) -> PathBuf {
        let summary = self.json("summary.json");
        let path = summary["checkpoint"].as_str().expect("a path").to_owned();
        assert!(Path::new(&path).is_absolute(), "{path}");
        PathBuf::from(path)
    }
}
