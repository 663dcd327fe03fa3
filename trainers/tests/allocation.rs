//! In the steady state a training step allocates nothing over 4 KiB.
//!
//! A test binary of its own with a single test: the counting allocator sees the whole process, data workers
//! included.
#![allow(unsafe_code)] // an allocator cannot be written otherwise

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tt_metrics::{Record, Sink, SinkResult};

const LARGE: usize = 4096;
static LARGE_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGE {
            LARGE_ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: as for this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as for this method.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Notes the count after each step.
struct PerStep(std::sync::mpsc::Sender<usize>);

impl Sink for PerStep {
    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        if matches!(record, Record::Step(_)) {
            self.0.send(LARGE_ALLOCATIONS.load(Relaxed)).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_step_allocates_nothing_large_once_warm() {
    let dir = tempfile::tempdir().unwrap();
    let job = common::job(40).prepare().unwrap();
    let (sender, counts) = std::sync::mpsc::channel();
    let metrics = common::metrics(dir.path()).with(PerStep(sender));
    job.run(dir.path(), metrics).unwrap();
    let counts: Vec<usize> = counts.iter().collect();
    assert_eq!(counts.len(), 40);
    assert!(counts[0] > 0, "the first step fills the pool");
    let steady: Vec<usize> = counts[10..]
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    assert!(
        steady.iter().all(|&new| new == 0),
        "large allocations by step: {steady:?}"
    );
}
