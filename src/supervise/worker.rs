//! The worker's side: a process that knows it is one by two environment variables.
//!
//! It asks the system to be killed when its supervisor ends, in whatever way, and leaves Ctrl-C to it. What the device's
//! libraries print goes to a log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail};
use signal_hook::consts::SIGINT;

use crate::supervise::session::{DEVICE_LOG, Files};

/// The session's folder.
const SESSION: &str = "TPU_TRAIN_SESSION";
/// The supervisor's process.
const SUPERVISOR: &str = "TPU_TRAIN_SUPERVISOR";

static WORKER: OnceLock<Files> = OnceLock::new();

/// Makes the process that `command` starts a worker of this one.
pub(super) fn prepare(command: &mut Command, files: &Files) {
    command
        .env(SESSION, &files.0)
        .env(SUPERVISOR, std::process::id().to_string())
        .env(tt_tpu::EMULATOR_FOLDER, files.emulator());
}

/// In a worker, to be called first: see the module. In any other process, nothing.
pub(crate) fn begin() -> anyhow::Result<()> {
    let (Some(session), Ok(supervisor)) = (std::env::var_os(SESSION), std::env::var(SUPERVISOR))
    else {
        return Ok(());
    };
    die_with(&supervisor)?;
    // Registered rather than ignored: processes that this one starts shall not inherit it.
    signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
    let files = Files(session.into());
    let log = append_to(&files.log())?;
    tt_tpu::streams::redirect_to(log).context("cannot redirect what the device prints")?;
    let _ = WORKER.set(files);
    Ok(())
}

/// Asks the system to end this process when the supervisor ends.
fn die_with(supervisor: &str) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    // It may have ended before that.
    let parent = std::os::unix::process::parent_id().to_string();
    if parent != supervisor {
        bail!("the process {supervisor} that supervised this one has ended");
    }
    Ok(())
}

pub(crate) fn is_worker() -> bool {
    WORKER.get().is_some()
}

/// Where to write down what is asked of the device: see [`tt_tpu::flight`].
pub(crate) fn flight() -> Option<PathBuf> {
    WORKER.get().map(Files::flight)
}

/// Says which folder the run has taken. The log goes on there.
pub(crate) fn entered(run: &Path) -> anyhow::Result<()> {
    let Some(files) = WORKER.get() else {
        return Ok(());
    };
    let mut so_far = File::open(files.log())?;
    let mut log = append_to(&run.join(DEVICE_LOG))?;
    let start = log.metadata()?.len();
    // What is printed in between is copied after it.
    copy(&mut so_far, &mut log)?;
    tt_tpu::streams::redirect_to(log.try_clone()?)?;
    copy(&mut so_far, &mut log)?;
    files.set_run(run, start)?;
    Ok(())
}

/// Says that the process has done what it was asked for, well or not, and ends with `code`.
pub(crate) fn ended(code: ExitCode) {
    let Some(files) = WORKER.get() else {
        return;
    };
    // A code does not give its number away.
    let number = (0..=u8::MAX).find(|&number| ExitCode::from(number) == code);
    // If this fails the supervisor says more than it need.
    let _ = files.set_ended(number.unwrap_or(1));
}

fn append_to(path: &Path) -> anyhow::Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    to.write_all(&bytes)
}
