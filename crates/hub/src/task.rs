//! Work that waits on the network or on another process, on a thread of its own, so that the caller can be shown how far it
//! is and can call it off at any moment, even within a connection that does not come about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{panic, thread};

use crate::HubError;
use crate::http::Http;

/// How often a caller is asked whether to go on.
const POLL: Duration = Duration::from_millis(50);
/// For work that is called off to put its files in order.
const GRACE: Duration = Duration::from_secs(2);
/// Between two reports on one file.
const REPORT: Duration = Duration::from_millis(100);

/// How far a file is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Progress {
    /// Within its repository.
    pub path: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// What a caller is told and asked while it waits, both on its own thread.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// Whether to give up. Asked many times a second.
    pub interrupt: &'a dyn Fn() -> bool,
    pub progress: &'a dyn Fn(Progress),
}

impl Wait<'_> {
    /// Waits as long as it takes and shows nothing.
    pub const QUIET: Wait<'static> = Wait {
        interrupt: &|| false,
        progress: &|_| (),
    };
}

enum Event<T> {
    Progress(Progress),
    Done(T),
}

/// What a piece of work has of its caller.
pub(crate) struct Task {
    pub(crate) http: Arc<Http>,
    cancelled: Arc<AtomicBool>,
    report: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl Task {
    pub(crate) fn check(&self) -> Result<(), HubError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(HubError::Interrupted);
        }
        Ok(())
    }

    pub(crate) fn sleep(&self, duration: Duration) -> Result<(), HubError> {
        let until = Instant::now() + duration;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL));
        }
    }

    /// Reports on the file at `path`.
    pub(crate) fn meter(&self, path: &str, total_bytes: u64) -> Meter {
        Meter {
            report: Arc::clone(&self.report),
            path: path.to_owned(),
            total_bytes,
            reported: None,
        }
    }
}

/// Reports how far a file is, but not too often.
#[derive(Clone)]
pub(crate) struct Meter {
    report: Arc<dyn Fn(Progress) + Send + Sync>,
    path: String,
    total_bytes: u64,
    reported: Option<Instant>,
}

impl Meter {
    pub(crate) fn at(&mut self, done_bytes: u64) {
        let is_due = self.reported.is_none_or(|at| at.elapsed() >= REPORT);
        if is_due || done_bytes == self.total_bytes {
            self.reported = Some(Instant::now());
            (self.report)(Progress {
                path: self.path.clone(),
                done_bytes,
                total_bytes: self.total_bytes,
            });
        }
    }
}

/// Does `work` while `wait` lets it.
pub(crate) fn run<T: Send + 'static>(
    http: &Arc<Http>,
    wait: Wait<'_>,
    work: impl FnOnce(&Task) -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    let (events, inbox) = mpsc::channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let task = Task {
        http: Arc::clone(http),
        cancelled: Arc::clone(&cancelled),
        report: reporter(events.clone()),
    };
    let worker = thread::spawn(move || {
        let done = work(&task);
        // Nobody waits any more for work that was called off.
        let _ = events.send(Event::Done(done));
    });
    let mut give_up = None;
    loop {
        match inbox.recv_timeout(POLL) {
            Ok(Event::Progress(progress)) => (wait.progress)(progress),
            Ok(Event::Done(done)) if give_up.is_none() => return done,
            Ok(Event::Done(_)) => return Err(HubError::Interrupted),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panicked) => panic::resume_unwind(panicked),
                Ok(()) => return Err(HubError::Interrupted),
            },
        }
        match give_up {
            None if (wait.interrupt)() => {
                cancelled.store(true, Ordering::Relaxed);
                http.hang_up();
                give_up = Some(Instant::now() + GRACE);
            }
            Some(at) if Instant::now() > at => return Err(HubError::Interrupted),
            _ => (),
        }
    }
}

fn reporter<T: Send + 'static>(events: Sender<Event<T>>) -> Arc<dyn Fn(Progress) + Send + Sync> {
    Arc::new(move |progress| {
        let _ = events.send(Event::Progress(progress));
    })
}
