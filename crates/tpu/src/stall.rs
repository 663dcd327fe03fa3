//! Which launch is at work: for the flight record, when the device takes long or ends the process.
//!
//! The runtime cannot be asked: a copy from the device, on whatever stream, waits for the launch that never ends. But the
//! emulator runs in this process, so every kernel begins by leaving its sequence number in [`STARTED`]. From there it is
//! written into the record now and then while the process waits, and when the process exits, which is what a failed
//! check of the emulator's makes it do. Of a chip it is not known: the word stays 0.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::flight::FlightRecord;

/// The launch that the emulator has begun with; 0: none.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// The record of this process: there is one device a process.
static RECORD: OnceLock<Arc<FlightRecord>> = OnceLock::new();

const PERIOD: Duration = Duration::from_millis(500);

/// Where kernels leave their sequence number.
pub(crate) fn started_address() -> u64 {
    STARTED.as_ptr() as u64
}

/// Keeps `flight` up to date, if it is kept at all.
pub(crate) fn watch(flight: &Arc<FlightRecord>) {
    if !flight.is_on() || RECORD.set(flight.clone()).is_err() {
        return;
    }
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> i32;
    }
    // SAFETY: the function takes nothing, does not unwind, and stays where it is.
    unsafe { atexit(write_started) };
    let body = move || {
        loop {
            thread::sleep(PERIOD);
            write_started();
        }
    };
    // Without the thread a hang is found all the same, and told less exactly.
    let _ = thread::Builder::new().name("stall".into()).spawn(body);
}

extern "C" fn write_started() {
    let started = STARTED.load(Ordering::Relaxed);
    if let Some(flight) = RECORD.get() {
        flight.started(started.into());
    }
}
