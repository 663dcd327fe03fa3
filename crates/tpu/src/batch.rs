//! Kernels that are collected on the host and run by one launch (`kernels/batch.c`), with the data that would have been
//! uploaded between them.
//!
//! What is collected is run before the host reads anything, and when there is enough of it. So nothing is recorded to be used
//! again: shapes, addresses and numbers that change from step to step are in the arguments as ever.

use std::collections::HashMap;

use crate::launch::kernels;
use crate::traffic::Traffic;

kernels! {
    /// Runs the kernels of a list.
    RunBatch = "batch" {
        records: u64,
        count: u32,
        bytes: u32,
    }
}

impl Traffic for RunBatch {}

/// Of a record's head, and what its arguments are filled up to a multiple of.
const RECORD_BYTES: usize = 64;
/// Of a kernel's arguments at most; `MAX_ARGS` of the kernel.
pub(crate) const MAX_ARGS: usize = 512;
/// In the place of a kernel.
const DATA: u32 = u32::MAX;
/// Data that is longer is uploaded by itself.
pub(crate) const MAX_DATA: usize = 256 << 10;
/// Kernels of a batch: a step of a few of them keeps the device busy while the host collects the next.
pub(crate) const MAX_KERNELS: u32 = 1024;
const MAX_BYTES: usize = 4 << 20;

/// What has been collected.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Where the device's list has each kernel.
    places: HashMap<String, u32>,
    records: Vec<u8>,
    count: u32,
}

impl Batch {
    /// For a module with these kernels, in this order.
    pub(crate) fn new(kernels: &[String]) -> Self {
        Self {
            places: kernels.iter().cloned().zip(0..).collect(),
            records: Vec::new(),
            count: 0,
        }
    }

    /// Adds a kernel, which is in the module.
    pub(crate) fn kernel(&mut self, name: &str, args: &[u8]) {
        self.record(self.places[name], 0, args);
    }

    /// Adds data for the address `to`.
    pub(crate) fn data(&mut self, to: u64, data: &[u8]) {
        self.record(DATA, to, data);
    }

    fn record(&mut self, kernel: u32, to: u64, content: &[u8]) {
        let bytes = content.len() as u32;
        let end = self.records.len() + RECORD_BYTES;
        self.records.extend(kernel.to_le_bytes());
        self.records.extend(bytes.to_le_bytes());
        self.records.extend(to.to_le_bytes());
        self.records.resize(end, 0);
        self.records.extend(content);
        self.records
            .resize(self.records.len().next_multiple_of(RECORD_BYTES), 0);
        self.count += 1;
    }

    /// Whether it is time to run it.
    pub(crate) fn is_full(&self) -> bool {
        self.count >= MAX_KERNELS || self.records.len() >= MAX_BYTES
    }

    /// The records and their number; `None`: there are none.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, u32)> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then(|| (std::mem::take(&mut self.records), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_the_device_reads_them() {
        let mut batch = Batch::new(&["fill".to_owned(), "unary".to_owned()]);
        assert_eq!(batch.take(), None);
        batch.kernel("unary", &[7; 70]);
        batch.data(4096, &[9; 64]);
        assert!(!batch.is_full());
        let (records, count) = batch.take().unwrap();
        assert_eq!((records.len(), count), (64 + 128 + 64 + 64, 2));
        assert_eq!(records[..8], [1, 0, 0, 0, 70, 0, 0, 0]);
        assert_eq!(records[64..134], [7; 70]);
        let head = &records[192..];
        assert_eq!(head[..4], [0xff; 4]);
        assert_eq!(head[4..16], [64, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(head[64..], [9; 64]);
        assert_eq!(batch.take(), None);
    }
}
