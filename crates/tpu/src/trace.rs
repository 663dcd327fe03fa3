//! What the device does while somebody looks: each launch, copy and wait, with its operands and its time.
//!
//! The host has no clock of the device (the runtime's time between two events is 0). So while a trace is taken, the host
//! waits for each launch and each upload before it goes on, and what is told is the time from the queueing to the end of that
//! wait, to the resolution of the polling. Kernels are launched one by one, in batches or not, with the same results.
//!
//! Bytes are those of the operands, each element counted once: what a kernel loads again for want of room is not in them.

use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::batch::Batch;
pub use crate::traffic::{Access, Operand};

/// Something that the device was given.
#[derive(Clone, Debug)]
pub struct DeviceEvent {
    pub work: Work,
    pub start: Instant,
    /// Until the runtime had taken it.
    pub queued: Duration,
    /// Until it was done.
    pub length: Duration,
    /// That gave it.
    pub thread: ThreadId,
}

#[derive(Clone, Debug)]
pub enum Work {
    Launch(TracedLaunch),
    Upload {
        bytes: u64,
    },
    Download {
        bytes: u64,
    },
    /// For what had been queued before.
    Wait,
}

/// A kernel and what it worked on.
#[derive(Clone, Debug)]
pub struct TracedLaunch {
    /// Counts the launches of the process.
    pub sequence: u32,
    pub kernel: &'static str,
    /// Its arguments, as a flight record has them.
    pub arguments: String,
    pub operands: Vec<Operand>,
}

impl TracedLaunch {
    pub fn read_bytes(&self) -> u64 {
        let read = self.operands.iter().filter(|it| it.access != Access::Write);
        read.map(Operand::bytes).sum()
    }

    pub fn written_bytes(&self) -> u64 {
        let written = self.operands.iter().filter(|it| it.access != Access::Read);
        written.map(Operand::bytes).sum()
    }
}

/// A trace that is being taken.
pub(crate) struct Trace {
    pub(crate) events: Vec<DeviceEvent>,
    /// What is used again when the trace ends.
    pub(crate) set_aside: Option<Batch>,
}

impl Trace {
    /// Something that began at `start`, was taken by the runtime `queued` later, and is done now.
    pub(crate) fn push(&mut self, start: Instant, queued: Duration, work: impl FnOnce() -> Work) {
        // To describe it takes time, too.
        let length = start.elapsed();
        self.events.push(DeviceEvent {
            work: work(),
            start,
            queued,
            length,
            thread: std::thread::current().id(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::code;
    use candle_core::DType;

    #[test]
    fn an_operand_that_is_accumulated_counts_for_both_sides() {
        let f32 = code(DType::F32).unwrap();
        let bf16 = code(DType::BF16).unwrap();
        let launch = TracedLaunch {
            sequence: 1,
            kernel: "matmul",
            arguments: String::new(),
            operands: vec![
                Operand::read("a", [2, 3], bf16),
                Operand::update("out", [2, 5], f32),
            ],
        };
        assert_eq!(launch.read_bytes(), 2 * 2 * 3 + 4 * 2 * 5);
        assert_eq!(launch.written_bytes(), 4 * 2 * 5);
    }
}
