//! SIGINT, SIGTERM, SIGHUP and SIGUSR1: the first asks the process to save and stop, a second SIGINT ends it at once.
//!
//! All that must happen happens in the handlers, which set flags and nothing else: whatever becomes of standard error or of
//! a thread, the request arrives. Until there is something to save, a signal ends the process.
//!
//! SIGUSR1 is what Slurm sends ahead of a time limit (`--signal=USR1@120`), SIGHUP what a terminal sends that is closed;
//! under `nohup` it is left ignored. In a worker, SIGINT is left to its supervisor.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tt_metrics::transcript::{self, Stream};

use crate::worker;

/// What an interrupted process exits with.
pub const EXIT_INTERRUPTED: u8 = 130;
/// What a process that was preempted, and can go on, exits with (`EX_TEMPFAIL` of sysexits).
pub const EXIT_PREEMPTED: u8 = 75;

/// Which signal asked the process to stop.
#[derive(Debug)]
pub struct StopSignal {
    has_nothing_to_save: Arc<AtomicBool>,
    /// The last one.
    received: Arc<AtomicUsize>,
}

impl StopSignal {
    /// Takes over these signals for the rest of the process. Each ends it, until [`StopSignal::save_first`]; from then on
    /// they set `stop`.
    pub fn install(stop: &Arc<AtomicBool>) -> io::Result<Self> {
        let (this, signals) = Self::handle(stop)?;
        let mut received = Signals::new(&signals)?;
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let _first = received.forever().next();
                let text = "saving and stopping (Ctrl-C again to stop at once)";
                let _ = writeln!(io::stderr(), "{text}");
                transcript::keep(Stream::Err, &format!("{text}\n"));
            })?;
        Ok(this)
    }

    /// The same in a process that has another speak for it: says nothing.
    pub fn install_silently(stop: &Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self::handle(stop)?.0)
    }

    fn handle(stop: &Arc<AtomicBool>) -> io::Result<(Self, Vec<i32>)> {
        let this = Self {
            has_nothing_to_save: Arc::new(AtomicBool::new(true)),
            received: Arc::default(),
        };
        let mut signals = vec![SIGTERM, SIGUSR1];
        signals.extend((!worker::is_worker()).then_some(SIGINT));
        signals.extend((!is_ignored(SIGHUP)).then_some(SIGHUP));
        for &signal in &signals {
            let code = exit_code(signal).into();
            // They run in this order.
            flag::register_conditional_shutdown(signal, code, this.has_nothing_to_save.clone())?;
            flag::register_usize(signal, this.received.clone(), signal as usize)?;
            flag::register(signal, stop.clone())?;
        }
        if signals.contains(&SIGINT) {
            // The second one. Whatever is half-written is so under a temporary name.
            let is_second = Arc::new(AtomicBool::new(false));
            let code = EXIT_INTERRUPTED.into();
            flag::register_conditional_shutdown(SIGINT, code, is_second.clone())?;
            flag::register(SIGINT, is_second)?;
        }
        Ok((this, signals))
    }

    /// From here on a signal is a request: there is something to save.
    pub fn save_first(&self) {
        self.has_nothing_to_save.store(false, Ordering::SeqCst);
    }

    /// What to exit with after having stopped; `None`: by no signal to this process.
    pub fn exit_code(&self) -> Option<u8> {
        let signal = self.received.load(Ordering::SeqCst) as i32;
        (signal != 0).then(|| exit_code(signal))
    }
}

fn exit_code(signal: i32) -> u8 {
    match signal {
        SIGTERM | SIGUSR1 | SIGHUP => EXIT_PREEMPTED,
        _ => EXIT_INTERRUPTED,
    }
}

/// Whether this process was started with the signal ignored, as `nohup` does it. Where the system does not tell: yes.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (signal - 1)) != 0)
}
