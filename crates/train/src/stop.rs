//! How a run is asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to save and end. Waiting for data, a step between two of its micro-batches, validation and samples are
/// broken off, and made by the run that goes on. Shared with whoever may ask.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks for the run to save and stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for what can only set one: a signal handler.
    pub fn shared(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// Whether that was asked for.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
