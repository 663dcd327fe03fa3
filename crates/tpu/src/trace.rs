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

/// As in `launch::code`: the types that kernels have where none is asked for.
pub(crate) const F32: u32 = 5;
pub(crate) const U32: u32 = 8;
pub(crate) const I32: u32 = 9;

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

/// Elements of device memory that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    pub name: &'static str,
    pub access: Access,
    pub shape: Vec<u64>,
    pub dtype: &'static str,
    element_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Read, and written again.
    Update,
}

impl Operand {
    pub(crate) fn read<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Read, shape, dtype)
    }

    pub(crate) fn write<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Write, shape, dtype)
    }

    pub(crate) fn update<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Update, shape, dtype)
    }

    /// Written, or read and written.
    pub(crate) fn result<const N: usize>(
        name: &'static str,
        shape: [i64; N],
        dtype: u32,
        accumulates: bool,
    ) -> Self {
        let access = if accumulates {
            Access::Update
        } else {
            Access::Write
        };
        Self::new(name, access, shape, dtype)
    }

    /// `dtype` as in `launch::code`.
    fn new<const N: usize>(
        name: &'static str,
        access: Access,
        shape: [i64; N],
        dtype: u32,
    ) -> Self {
        let (dtype, element_bytes) = match dtype {
            0 => ("u8", 1),
            3 => ("f16", 2),
            F32 => ("f32", 4),
            U32 => ("u32", 4),
            I32 => ("i32", 4),
            11 => ("bf16", 2),
            _ => ("?", 0),
        };
        Self {
            name,
            access,
            shape: shape.map(|size| size.max(0) as u64).to_vec(),
            dtype,
            element_bytes,
        }
    }

    /// Elements of which only the size is known.
    pub(crate) fn of_bytes<const N: usize>(
        name: &'static str,
        access: Access,
        shape: [i64; N],
        element_bytes: u32,
    ) -> Self {
        let dtype = match element_bytes {
            1 => "8 bit",
            2 => "16 bit",
            _ => "32 bit",
        };
        Self {
            dtype,
            element_bytes: element_bytes.into(),
            ..Self::new(name, access, shape, 0)
        }
    }

    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element_bytes
    }
}

/// Says what a launch reads and writes; nothing, if its author does not.
pub trait Traffic {
    fn operands(&self) -> Vec<Operand> {
        Vec::new()
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

    #[test]
    fn every_dtype_of_the_device_has_its_size() {
        for dtype in [
            DType::U8,
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::U32,
            DType::I32,
        ] {
            let operand = Operand::read("x", [3], code(dtype).unwrap());
            assert_eq!(operand.bytes(), 3 * dtype.size_in_bytes() as u64);
            assert_eq!(operand.dtype, dtype.as_str());
        }
    }
}
