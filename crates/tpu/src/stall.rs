//! Finds out which launch is at work when the device takes long.
//!
//! Every kernel begins by writing its sequence number into a word of the device's memory. While the process waits for
//! longer than [`PATIENCE`], a thread reads that word now and then and writes it into the flight record: so who
//! watches from outside tells a long queue from a launch that never ends, and which.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::flight::FlightRecord;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Looks at the same wait before the device is asked: in a run that goes well it never is.
const PATIENCE: u32 = 2;

/// Starts the thread. `begun` reads the word.
pub(crate) fn watch(flight: Arc<FlightRecord>, begun: impl Fn() -> Option<u64> + Send + 'static) {
    let body = move || {
        let (mut seen, mut looks) = (0, 0);
        loop {
            thread::sleep(PERIOD);
            let wait = flight.current_wait();
            looks = if wait == Some(seen) { looks + 1 } else { 0 };
            seen = wait.unwrap_or_default();
            if looks >= PATIENCE
                && let Some(sequence) = begun()
            {
                flight.started(sequence);
            }
        }
    };
    let thread = thread::Builder::new().name("stall".into());
    // Without it a hang is found all the same, and told less exactly.
    let _ = thread.spawn(body);
}
