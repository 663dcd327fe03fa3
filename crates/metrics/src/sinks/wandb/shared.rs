//! What the threads of one sink tell each other. Nothing here is held for longer than a copy takes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::alert::Alert;
use crate::image::Image;
use crate::sink::End;

/// Rows whose time is kept until they are read. A thread that is this far behind takes the time at which it reads.
const MOST_MARKS: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Shared {
    /// Up to where metrics.jsonl may be read.
    position: AtomicU64,
    /// Behind the rows of earlier processes.
    live_from: AtomicU64,
    marks: Mutex<Vec<Mark>>,
    ending: OnceLock<End>,
    is_log_closed: AtomicBool,
    is_abandoned: AtomicBool,
    /// The server has asked to be left alone until then.
    obliged_until: Mutex<Option<Instant>>,
    threads: Mutex<Vec<Thread>>,
    has_news: AtomicBool,
    news: Mutex<Vec<String>>,
    alerts: Mutex<Vec<Alert>>,
    images: Mutex<Vec<Image>>,
    checkpoints: Mutex<Vec<(u64, PathBuf)>>,
    is_stop_wanted: AtomicBool,
    pub(super) is_silent: AtomicBool,
}

/// When a row was logged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// Behind the row.
    pub(super) position: u64,
    /// Unix time, seconds.
    pub(super) time: f64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The record is so long before this process adds to it.
    pub(super) fn begin_at(&self, position: u64) {
        self.live_from.store(position, Ordering::Release);
        self.position.store(position, Ordering::Release);
    }

    /// There is one row more. This is all that the training thread waits for.
    pub(super) fn advance(&self, mark: Mark) {
        let mut marks = locked(&self.marks);
        if marks.len() < MOST_MARKS {
            marks.push(mark);
        }
        drop(marks);
        self.position.store(mark.position, Ordering::Release);
    }

    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    pub(super) fn live_from(&self) -> u64 {
        self.live_from.load(Ordering::Acquire)
    }

    pub(super) fn take_marks(&self) -> Vec<Mark> {
        std::mem::take(&mut locked(&self.marks))
    }

    pub(super) fn end(&self, end: End) {
        let _ = self.ending.set(end);
        self.wake();
    }

    pub(super) fn ending(&self) -> Option<&End> {
        self.ending.get()
    }

    /// Nothing more will be written to the log.
    pub(super) fn close_log(&self) {
        self.is_log_closed.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_log_closed(&self) -> bool {
        self.is_log_closed.load(Ordering::Acquire)
    }

    /// Nobody waits any more.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(super) fn oblige(&self, until: Option<Instant>) {
        *locked(&self.obliged_until) = until;
    }

    pub(super) fn obliged_until(&self) -> Option<Instant> {
        *locked(&self.obliged_until)
    }

    /// The calling thread is woken by what happens here.
    pub(super) fn join_in(&self) {
        locked(&self.threads).push(thread::current());
    }

    fn wake(&self) {
        for thread in locked(&self.threads).iter() {
            thread.unpark();
        }
    }

    /// Waits this long, or until `is_over`.
    pub(super) fn pause(&self, duration: Duration, is_over: impl Fn(&Self) -> bool) {
        let until = Instant::now() + duration;
        while !is_over(self) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    pub(super) fn alert(&self, alert: Alert) {
        locked(&self.alerts).push(alert);
    }

    pub(super) fn take_alerts(&self) -> Vec<Alert> {
        std::mem::take(&mut locked(&self.alerts))
    }

    pub(super) fn show(&self, image: Image) {
        locked(&self.images).push(image);
    }

    pub(super) fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut locked(&self.images))
    }

    /// The checkpoint of a step, and its folder.
    pub(super) fn note_checkpoint(&self, step: u64, dir: PathBuf) {
        locked(&self.checkpoints).push((step, dir));
    }

    pub(super) fn take_checkpoints(&self) -> Vec<(u64, PathBuf)> {
        std::mem::take(&mut locked(&self.checkpoints))
    }

    /// Somebody has pressed Stop on the site.
    pub(super) fn want_stop(&self) {
        self.is_stop_wanted.store(true, Ordering::Release);
    }

    pub(super) fn is_stop_wanted(&self) -> bool {
        self.is_stop_wanted.load(Ordering::Acquire)
    }

    /// For the user.
    pub(super) fn inform(&self, text: String) {
        if !self.is_silent.load(Ordering::Relaxed) {
            self.warn(text);
        }
    }

    /// For the user, also for one who wants to hear little.
    pub(super) fn warn(&self, text: String) {
        locked(&self.news).push(text);
        self.has_news.store(true, Ordering::Release);
    }

    pub(super) fn take_news(&self) -> Vec<String> {
        if self.has_news.swap(false, Ordering::AcqRel) {
            return std::mem::take(&mut locked(&self.news));
        }
        Vec::new()
    }
}

/// Unix time, seconds, to the microsecond: what a log keeps.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    (since.unwrap_or_default().as_secs_f64() * 1e6).round() / 1e6
}

/// What the server is told of an end. A run that can go on ends with what says so to a shell.
pub(super) fn exit_code(end: &End) -> i64 {
    match end {
        End::Finished => 0,
        End::Failed(_) => 1,
        End::Stopped => 75,
    }
}
