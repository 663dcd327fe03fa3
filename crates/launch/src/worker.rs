//! The worker's side: a process that knows it is one by two environment variables, and in a run of several ranks which of
//! them it is by what its launcher says.
//!
//! It asks the system to be killed when its supervisor ends, in whatever way, and leaves Ctrl-C to it. What the device's
//! libraries print goes to a log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use signal_hook::consts::SIGINT;
use tt_dist::launched;

use crate::session::{DEVICE_LOG, Files, Session};
use crate::{Error, Result};

/// The session's folder.
const SESSION: &str = "TPU_TRAIN_SESSION";
/// The supervisor's process.
const SUPERVISOR: &str = "TPU_TRAIN_SUPERVISOR";

static WORKER: OnceLock<Files> = OnceLock::new();

/// Makes the process that `command` starts end with this one.
pub(crate) fn tie(command: &mut Command) {
    command.env(SUPERVISOR, std::process::id().to_string());
}

/// Says which session the process that `command` starts works in.
pub(crate) fn set_session(command: &mut Command, files: &Files) {
    command
        .env(SESSION, &files.0)
        .env(tt_tpu::EMULATOR_FOLDER, files.emulator());
}

/// In a worker, to be called first: see the module. In any other process, nothing.
pub(crate) fn begin() -> Result<()> {
    let (Some(session), Ok(supervisor)) = (std::env::var_os(SESSION), std::env::var(SUPERVISOR))
    else {
        return Ok(());
    };
    // That of a rank is its launcher, or one of the launcher's processes.
    let rank = launched().map(|it| it.rank);
    set_parent_death_signal(rank.is_none().then_some(supervisor))?;
    // Registered rather than ignored: processes that this one starts shall not inherit it.
    signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
    work_in(Files(session.into()).of_rank(rank.unwrap_or(0)))
}

/// Makes this process, which a launcher of the user's has started, a worker without a supervisor: the launcher has its eye
/// on it. What the device leaves behind is removed at its end, or by the next supervisor.
pub fn begin_alone() -> Result<()> {
    if is_worker() {
        return Ok(());
    }
    let session = Session::create(1)?;
    work_in(session.files().clone())?;
    *own_session() = Some(session);
    Ok(())
}

fn own_session() -> MutexGuard<'static, Option<Session>> {
    static OWN: Mutex<Option<Session>> = Mutex::new(None);
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work_in(files: Files) -> Result<()> {
    let log = append_to(&files.log())?;
    tt_tpu::streams::redirect_to(log).map_err(Error::Redirect)?;
    let _ = WORKER.set(files);
    Ok(())
}

/// Asks the system to end this process when its parent ends, which is `supervisor`.
fn set_parent_death_signal(supervisor: Option<String>) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    }
    // It may have ended before that.
    let parent = std::os::unix::process::parent_id().to_string();
    match supervisor {
        Some(supervisor) if parent != supervisor => Err(Error::Orphaned { supervisor }),
        _ => Ok(()),
    }
}

/// Whether this process is a worker.
pub fn is_worker() -> bool {
    WORKER.get().is_some()
}

/// The process that this one works for, if it is a worker and has one.
pub fn supervisor() -> Option<u32> {
    std::env::var(SUPERVISOR)
        .ok()?
        .parse()
        .ok()
        .filter(|_| is_worker())
}

/// Where a worker writes down what it asks of the device: see [`tt_tpu::flight`].
pub fn flight_record() -> Option<PathBuf> {
    WORKER.get().map(Files::flight)
}

/// Tells the supervisor which folder the run has taken. The log goes on there.
pub fn set_run_folder(run: &Path) -> Result<()> {
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

/// Tells the supervisor that the process has done what it was asked for, well or not, and ends with `code`.
pub fn set_exit_code(code: ExitCode) {
    let Some(files) = WORKER.get() else {
        return;
    };
    // A code does not give its number away.
    let number = (0..=u8::MAX).find(|&number| ExitCode::from(number) == code);
    // If this fails the supervisor says more than it need.
    let _ = files.set_exit_code(number.unwrap_or(1));
    *own_session() = None;
}

fn append_to(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    to.write_all(&bytes)
}
