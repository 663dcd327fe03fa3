//! Spans of time, while somebody asks for them: what was done, when and for how long, on which thread.
//!
//! Each operation is one, named by its module (`fused::attention`), and each operation that the backward pass undoes; on a TPU
//! each launch, upload, download and wait of [`tt_tpu::trace`], within the operation that asked for it. What stands above
//! operations adds its own with [`span`]. While nothing is recorded a span is one look at a flag. A process has one record.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use tt_tpu::trace::{DeviceEvent, Work};

use crate::Device;
use crate::error::Result;

static IS_ON: AtomicBool = AtomicBool::new(false);
static RECORD: Mutex<Option<Record>> = Mutex::new(None);

struct Record {
    begun: Instant,
    device: Device,
    events: Vec<Event>,
}

/// A span that is over.
#[derive(Clone, Debug)]
pub struct Event {
    /// What was done.
    pub name: Cow<'static, str>,
    /// Of what kind: `kernel`, for one.
    pub kind: &'static str,
    /// When it began, since recording did.
    pub start: Duration,
    /// How long it took.
    pub length: Duration,
    /// Where.
    pub thread: ThreadId,
    /// Operations that a device without memory has counted meanwhile; 0 on others.
    pub flops: u64,
    /// What a TPU was given, and the time until its runtime had taken it.
    pub work: Option<(Work, Duration)>,
}

/// What is being done; over when it is dropped.
#[must_use]
pub struct Span(Option<Begun>);

struct Begun {
    name: Cow<'static, str>,
    kind: &'static str,
    start: Instant,
    /// Counted before it.
    flops: u64,
}

impl Record {
    /// What its device has counted so far, if it counts.
    fn flops(&self) -> u64 {
        match self.device {
            Device::Meta(meta) => meta.usage().flops,
            Device::Cpu | Device::Tpu(_) => 0,
        }
    }
}

/// Records spans from now on, and what `device` does. Error: what it did before has failed.
pub fn begin(device: Device) -> Result<()> {
    if let Device::Tpu(tpu) = device {
        tpu.begin_trace()?;
    }
    *record() = Some(Record {
        begun: Instant::now(),
        device,
        events: Vec::new(),
    });
    IS_ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Stops recording, and gives the spans that are over: in the order in which they ended, those of a TPU behind the others.
pub fn end() -> Vec<Event> {
    IS_ON.store(false, Ordering::Relaxed);
    let Some(mut record) = record().take() else {
        return Vec::new();
    };
    if let Device::Tpu(tpu) = record.device {
        let of_device = tpu.end_trace().into_iter();
        let of_device = of_device.map(|event| Event::of_device(event, record.begun));
        record.events.extend(of_device);
    }
    record.events
}

/// Whether spans are recorded.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// How long spans have been recorded, if they are.
pub fn since_begin() -> Option<Duration> {
    record().as_ref().map(|record| record.begun.elapsed())
}

/// Begins a span. Its name is asked for if spans are recorded.
#[inline]
pub fn span<N: Into<Cow<'static, str>>>(kind: &'static str, name: impl FnOnce() -> N) -> Span {
    Span(is_on().then(|| Begun {
        name: name().into(),
        kind,
        flops: record().as_ref().map_or(0, Record::flops),
        start: Instant::now(),
    }))
}

/// Of a kernel of the operation in module `module`.
#[inline]
pub(crate) fn kernel(module: &'static str) -> Span {
    span("kernel", || {
        module.strip_prefix("tt_tensor::").unwrap_or(module)
    })
}

impl Event {
    fn of_device(event: DeviceEvent, begun: Instant) -> Self {
        let (kind, name) = match &event.work {
            Work::Launch(launch) => ("launch", launch.kernel),
            Work::Upload { .. } => ("copy", "upload"),
            Work::Download { .. } => ("copy", "download"),
            Work::Wait => ("wait", "wait"),
        };
        Self {
            name: name.into(),
            kind,
            start: event.start.saturating_duration_since(begun),
            length: event.length,
            thread: event.thread,
            flops: 0,
            work: Some((event.work, event.queued)),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(begun) = self.0.take() else {
            return;
        };
        let length = begun.start.elapsed();
        if let Some(record) = &mut *record() {
            record.events.push(Event {
                name: begun.name,
                kind: begun.kind,
                start: begun.start.saturating_duration_since(record.begun),
                length,
                thread: std::thread::current().id(),
                // It may be of a record before this one.
                flops: record.flops().saturating_sub(begun.flops),
                work: None,
            });
        }
    }
}

/// A push leaves the record whole, whatever has become of who made it.
fn record() -> MutexGuard<'static, Option<Record>> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}
