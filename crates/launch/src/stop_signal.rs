//! SIGINT, SIGTERM and SIGUSR1: the first asks the process to save and stop, a second SIGINT ends it at once.
//! SIGUSR1 is what Slurm sends ahead of a time limit (`--signal=USR1@120`). In a worker, SIGINT is left to its supervisor.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::worker;

/// What an interrupted process exits with.
pub const EXIT_INTERRUPTED: u8 = 130;
/// What a process that was preempted, and can go on, exits with (`EX_TEMPFAIL` of sysexits).
pub const EXIT_PREEMPTED: u8 = 75;

/// Which signal asked the process to stop.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicI32>);

impl StopSignal {
    /// Takes over these signals for the rest of the process; the first of them calls `stop`.
    pub fn install(stop: impl Fn() + Send + 'static) -> io::Result<Self> {
        let received = Self::default();
        let first = received.clone();
        let mut signals = Signals::new([SIGTERM, SIGUSR1])?;
        if !worker::is_worker() {
            signals.add_signal(SIGINT)?;
        }
        // A thread rather than a handler, so that it may print.
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    let is_first = first
                        .0
                        .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst)
                        .is_ok();
                    if is_first {
                        eprintln!("saving and stopping (Ctrl-C again to stop at once)");
                        stop();
                    } else if signal == SIGINT {
                        // Whatever is half-written is so under a temporary name.
                        std::process::exit(EXIT_INTERRUPTED.into());
                    }
                    // A second one of the others does nothing more: schedulers repeat them.
                }
            })?;
        Ok(received)
    }

    /// What to exit with after having stopped.
    pub fn exit_code(&self) -> u8 {
        match self.0.load(Ordering::SeqCst) {
            SIGTERM | SIGUSR1 => EXIT_PREEMPTED,
            _ => EXIT_INTERRUPTED,
        }
    }
}
