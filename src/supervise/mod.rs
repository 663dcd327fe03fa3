//! Runs a command whose device may take the process with it in a process of its own: the worker.
//!
//! A TPU's runtime reports no failure. A kernel's failed check ends the process, or leaves it waiting for ever. So for
//! `device=tpu` this program starts itself again, with the same arguments. The worker does what was asked for as if
//! there were no supervisor, on the same terminal; the supervisor loads no device library. It
//!
//! - passes on what asks a run to stop, and ends with the worker's exit code;
//! - watches the [flight record](tt_tpu::flight), and ends a worker that waits for longer than `device.timeout_seconds`;
//! - says what happened if the worker did not end in order, see [`report`], and starts it again from the last checkpoint up
//!   to `device.restart.max` times;
//! - removes what the device leaves behind, also of supervisors that were killed, see [`session`].
//!
//! The worker dies with its supervisor, see [`worker`].
//!
//! Ctrl-C reaches both from the terminal. The worker disregards it; what it is told by the supervisor is SIGTERM, once.

mod report;
mod session;
mod watch;
pub(crate) mod worker;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tt_config::Composition;

use crate::device::{DeviceConfig, DeviceKind};
use crate::failure::Failure;
use crate::signals::{EXIT_INTERRUPTED, EXIT_PREEMPTED};
use crate::sweep;
use crate::{ending, out};

use report::Report;
use session::Session;
use watch::Watch;

/// How often the worker is looked after.
const PERIOD: Duration = Duration::from_millis(20);
/// How long the device's libraries may take to clean up, once the worker has done what it was asked for.
const CLEAN_UP: Duration = Duration::from_secs(10);

/// The device of a command that this process must not run itself: see the module.
///
/// A config that is wrong opens no device; the command says what is wrong with it.
pub(crate) fn wanted(composition: &Composition) -> Option<DeviceConfig> {
    let device: DeviceConfig = composition.section("device").extract().ok()?;
    (device.kind == DeviceKind::Tpu && !worker::is_worker()).then_some(device)
}

/// Runs the command of `arguments` in workers until one ends in order, or none may be started any more.
pub(crate) fn run(device: &DeviceConfig, arguments: &[String]) -> Result<ExitCode, Failure> {
    let program = sweep::program()?;
    run_workers(device, arguments, |arguments| {
        let mut command = Command::new(&program);
        command.args(arguments);
        command
    })
}

fn run_workers(
    device: &DeviceConfig,
    arguments: &[String],
    command: impl Fn(&[String]) -> Command,
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(Failure::run)?;
    let mut arguments_now = arguments.to_vec();
    let mut saved = None;
    for restarts in 0.. {
        let session = Session::create().map_err(Failure::Run)?;
        let mut worker = start(command(&arguments_now), &session)?;
        let (end, asked) = attend(&mut worker, &session, device, &mut signals)?;
        if let Some(code) = exit_code(&end, session.files().ended(), asked) {
            return Ok(code.into());
        }
        let report = Report::new(&end, &session, arguments);
        let has_progress = restarts == 0 || report.step() > saved;
        if asked.is_some() || restarts == device.restart.max || !has_progress {
            let tried = match (restarts, has_progress) {
                (0, _) => String::new(),
                (_, true) => format!("\n  it was started again {restarts} times, no more"),
                (_, false) => "\n  nothing was saved since it was started again".to_owned(),
            };
            return Err(Failure::Run(anyhow!("{report}{tried}")));
        }
        eprintln!("error: {report}");
        saved = report.step();
        arguments_now = match (report.run(), saved) {
            (Some(run), Some(_)) => ending::resuming(arguments, run),
            _ => arguments.to_vec(), // nothing to go on from
        };
        out::line(format!(
            "starting again, {} of {} times",
            restarts + 1,
            device.restart.max
        ));
    }
    unreachable!("the range does not end")
}

fn start(mut command: Command, session: &Session) -> Result<Child, Failure> {
    worker::prepare(&mut command, session.files());
    let worker = command.spawn();
    let worker = worker.context("cannot start the process that works on the device");
    worker.map_err(Failure::Run)
}

/// How a worker ended.
#[derive(Debug)]
enum End {
    Exit(ExitStatus),
    /// It was killed after having waited this long for the device.
    Hang(Duration),
}

/// Waits for the worker's end. Gives also the signal that asked for it: the first, or a second Ctrl-C.
fn attend(
    worker: &mut Child,
    session: &Session,
    device: &DeviceConfig,
    signals: &mut Signals,
) -> Result<(End, Option<i32>), Failure> {
    let mut watch = Watch::new(device.timeout_seconds.map(Duration::from_secs));
    let (mut asked, mut ended) = (None, None);
    loop {
        if let Some(status) = worker.try_wait().map_err(Failure::run)? {
            return Ok((End::Exit(status), asked));
        }
        for signal in signals.pending() {
            match (asked, signal) {
                // The second one: at once. Whatever is half-written is so under a temporary name.
                (Some(_), SIGINT) => return Ok((End::Exit(kill(worker)?), Some(SIGINT))),
                (None, SIGUSR1) => pass_on(worker, Signal::USR1),
                _ => pass_on(worker, Signal::TERM),
            }
            asked.get_or_insert(signal);
        }
        if let Some(waited) = watch.look(session.files(), Instant::now()) {
            kill(worker)?;
            return Ok((End::Hang(waited), asked));
        }
        if session.files().ended().is_some() {
            let ended = *ended.get_or_insert_with(Instant::now);
            if ended.elapsed() > CLEAN_UP {
                return Ok((End::Exit(kill(worker)?), asked));
            }
        }
        thread::sleep(PERIOD);
    }
}

fn pass_on(worker: &Child, signal: Signal) {
    // It has not been waited for, so the number is still its own; having ended meanwhile, it needs no signal.
    let _ = kill_process(Pid::from_child(worker), signal);
}

fn kill(worker: &mut Child) -> Result<ExitStatus, Failure> {
    worker
        .kill()
        .and_then(|()| worker.wait())
        .map_err(Failure::run)
}

/// What to exit with. `None`: something went wrong that the worker could not tell.
///
/// `ended` is what it told. After that nothing is wrong any more: the device's libraries may crash while they clean up.
fn exit_code(end: &End, ended: Option<u8>, asked: Option<i32>) -> Option<u8> {
    let signal = match end {
        End::Exit(status) => status.signal(),
        End::Hang(_) => None,
    };
    match (ended, signal, asked) {
        // It was told to stop by SIGTERM, and can only answer to that.
        (Some(EXIT_PREEMPTED), _, Some(SIGINT)) => Some(EXIT_INTERRUPTED),
        (Some(code), _, _) => Some(code),
        // Told before it was prepared to be, or killed by the second Ctrl-C.
        (None, Some(SIGKILL | SIGTERM | SIGUSR1), Some(asked)) => u8::try_from(128 + asked).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
