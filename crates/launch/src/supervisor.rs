//! Runs a command whose device may take the process with it in a process of its own: the worker.
//!
//! A TPU's runtime reports no failure. A kernel's failed check ends the process, or leaves it waiting for ever. So for
//! `device=tpu` the program starts itself again, with the same arguments. The worker does what was asked for as if
//! there were no supervisor, on the same terminal; the supervisor loads no device library. It
//!
//! - passes on what asks a run to stop, and ends with the worker's exit code;
//! - watches the [flight record](tt_tpu::flight), and ends a worker that waits for longer than it may, see `watchdog`;
//! - says what happened if the worker did not end in order, see `crash_report`, and starts it again from the
//!   last checkpoint, a given number of times;
//! - removes what the device leaves behind, also of supervisors that were killed, see
//!   `session`.
//!
//! Of a run of several ranks each is a worker, with a device of its own, and the process that is started is their launcher
//! (`mpirun`). It is told to stop by way of the first rank, see [`child`](crate::child).
//!
//! The worker dies with its supervisor, see [`worker`].
//!
//! Ctrl-C reaches both from the terminal. The worker disregards it; what it is told by the supervisor is SIGTERM, once.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tt_metrics::transcript::{self, CONSOLE_LOG};

use crate::child::{Child, Tie};
use crate::crash_report::{CrashReport, WorkerEnd};
use crate::session::Session;
use crate::stop_signal;
use crate::watchdog::Watchdog;
use crate::worker;
use crate::{EXIT_INTERRUPTED, EXIT_PREEMPTED, Error, Result, Supervised};

/// How often the worker is looked after.
const PERIOD: Duration = Duration::from_millis(20);
/// How long the device's libraries may take to clean up, once the worker has done what it was asked for.
const CLEAN_UP: Duration = Duration::from_secs(10);

/// What a worker may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// A single wait for the device that is longer is a hang; `None`: never.
    pub wait: Option<Duration>,
    /// How often a worker is started again, as long as each has saved something newer.
    pub restarts: u32,
}

/// Runs workers until one ends in order, or none may be started any more; gives the exit code.
pub fn run(supervised: &dyn Supervised, limits: Limits) -> Result<u8> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    if !stop_signal::is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    let mut command = supervised.command(None);
    let mut saved = None;
    for restarts in 0.. {
        let session = Session::create(supervised.num_ranks())?;
        worker::set_session(&mut command, session.files());
        let tie = match supervised.num_ranks() {
            1 => Tie::Supervised,
            _ => Tie::Ranks,
        };
        let worker = Child::start(&mut command, tie);
        let mut worker = worker.map_err(|source| Error::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let (end, stop_signal) = wait(&mut worker, &session, limits.wait, &mut signals)?;
        if let Some(code) = exit_code(&end, session.files().exit_code(), stop_signal) {
            return Ok(code);
        }
        let report = CrashReport::new(&end, &session, supervised);
        // The worker cannot write this to its transcript any more.
        if let Some(run) = report.run() {
            transcript::append(&run.join(CONSOLE_LOG), &format!("error: {report}\n"));
        }
        let has_progress = restarts == 0 || report.step() > saved;
        if stop_signal.is_some() || restarts == limits.restarts || !has_progress {
            let tried = match (restarts, has_progress) {
                (0, _) => String::new(),
                (_, true) => format!("\n  it was started again {restarts} times, no more"),
                (_, false) => "\n  nothing was saved since it was started again".to_owned(),
            };
            return Err(Error::Crash(format!("{report}{tried}")));
        }
        // A reader that has gone away is no reason to stop.
        let _ = writeln!(io::stderr(), "error: {report}");
        saved = report.step();
        // Without a checkpoint there is nothing to go on from.
        command = supervised.command(report.run().filter(|_| saved.is_some()));
        let _ = writeln!(
            io::stdout(),
            "starting again, {} of {} times",
            restarts + 1,
            limits.restarts
        );
    }
    unreachable!("the range does not end")
}

/// Waits for the worker's end. Gives also the signal that asked for it: the first, or a second Ctrl-C.
fn wait(
    worker: &mut Child,
    session: &Session,
    longest_wait: Option<Duration>,
    signals: &mut Signals,
) -> Result<(WorkerEnd, Option<i32>)> {
    let watchdog = |files| (Watchdog::new(longest_wait), files);
    let mut watchdogs: Vec<_> = session.of_ranks().map(watchdog).collect();
    let (mut stop_signal, mut done_since) = (None, None);
    loop {
        if let Some(status) = worker.try_wait()? {
            return Ok((WorkerEnd::Exit(status), stop_signal));
        }
        for signal in signals.pending() {
            match (stop_signal, signal) {
                // The second one: at once. Whatever is half-written is so under a temporary name.
                (Some(_), SIGINT) => return Ok((WorkerEnd::Exit(worker.kill()?), Some(SIGINT))),
                _ if watchdogs.len() > 1 => worker.close_pipe(),
                (None, SIGUSR1) => worker.signal(Signal::USR1),
                _ => worker.signal(Signal::TERM),
            }
            stop_signal.get_or_insert(signal);
        }
        for (rank, (watchdog, files)) in watchdogs.iter_mut().enumerate() {
            if let Some(waited) = watchdog.poll(files, Instant::now()) {
                worker.kill()?;
                return Ok((WorkerEnd::Hang { rank, waited }, stop_signal));
            }
        }
        if session.files().exit_code().is_some() {
            let done_since = *done_since.get_or_insert_with(Instant::now);
            if done_since.elapsed() > CLEAN_UP {
                return Ok((WorkerEnd::Exit(worker.kill()?), stop_signal));
            }
        }
        thread::sleep(PERIOD);
    }
}

/// What to exit with. `None`: something went wrong that the worker could not tell.
///
/// `told` is the code that it told. After that nothing is wrong any more: the device's libraries may crash while they clean up.
fn exit_code(end: &WorkerEnd, told: Option<u8>, stop_signal: Option<i32>) -> Option<u8> {
    let (signal, exited) = match end {
        WorkerEnd::Exit(status) => (status.signal(), status.code()),
        WorkerEnd::Hang { .. } => (None, None),
    };
    // Asked to stop when it had nothing to save yet, it ends without a word.
    let is_preempted = stop_signal.is_some() && exited == Some(EXIT_PREEMPTED.into());
    let told = told.or(is_preempted.then_some(EXIT_PREEMPTED));
    match (told, signal, stop_signal) {
        // It was told to stop by SIGTERM, and can only answer to that.
        (Some(EXIT_PREEMPTED), _, Some(SIGINT)) => Some(EXIT_INTERRUPTED),
        (Some(code), _, _) => Some(code),
        // Told before it was prepared to be, or killed by the second Ctrl-C.
        (None, Some(SIGKILL | SIGTERM | SIGUSR1), Some(stop)) => u8::try_from(128 + stop).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
