//! Spans of time, while somebody asks for them: what was done, when and for how long, on which thread.
//!
//! Each launch of a kernel is one, named by the module of the operation (`fused::attention`), and each operation that the
//! backward pass undoes. What stands above operations adds its own with [`span`]. While nothing is recorded a span is one
//! look at a flag. A process has one record; a launch on a TPU ends when it is handed over, unless `device.sync` waits for it.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static IS_ON: AtomicBool = AtomicBool::new(false);
static RECORD: Mutex<Option<Record>> = Mutex::new(None);

struct Record {
    begun: Instant,
    events: Vec<Event>,
}

/// A span that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What was done.
    pub name: Cow<'static, str>,
    /// Of what kind: `kernel`, for one.
    pub kind: &'static str,
    /// When it began, since recording did.
    pub start: Duration,
    /// How long it took.
    pub length: Duration,
    /// Where: a number for each thread.
    pub thread: u64,
}

/// What is being done; over when it is dropped.
#[must_use]
pub struct Span(Option<(Cow<'static, str>, &'static str, Instant)>);

/// Records spans from now on.
pub fn begin() {
    *record() = Some(Record {
        begun: Instant::now(),
        events: Vec::new(),
    });
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops recording, and gives the spans that are over, in the order in which they ended.
pub fn end() -> Vec<Event> {
    IS_ON.store(false, Ordering::Relaxed);
    record().take().map_or_else(Vec::new, |it| it.events)
}

/// Whether spans are recorded.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Begins a span. Its name is asked for if spans are recorded.
#[inline]
pub fn span<N: Into<Cow<'static, str>>>(kind: &'static str, name: impl FnOnce() -> N) -> Span {
    Span(is_on().then(|| (name().into(), kind, Instant::now())))
}

/// Of a kernel of the operation in module `module`.
#[inline]
pub(crate) fn kernel(module: &'static str) -> Span {
    span("kernel", || {
        module.strip_prefix("tt_tensor::").unwrap_or(module)
    })
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some((name, kind, start)) = self.0.take() else {
            return;
        };
        let length = start.elapsed();
        if let Some(record) = &mut *record() {
            record.events.push(Event {
                name,
                kind,
                start: start.saturating_duration_since(record.begun),
                length,
                thread: thread(),
            });
        }
    }
}

/// A push leaves the record whole, whatever has become of who made it.
fn record() -> MutexGuard<'static, Option<Record>> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}
