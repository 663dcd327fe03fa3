//! What the vendor's libraries must not change, and which thread calls them.

use std::hint::black_box;

use crate::alone;
use candle_core::CpuStorage;
use candle_core::backend::BackendStorage;

use crate::common::{device, upload};

#[test]
fn the_host_computes_with_subnormal_numbers_as_before() {
    let _alone = alone();
    if device().is_none() {
        return;
    }
    let compute = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
    assert!(compute() > 0.0, "in the thread that opened the device");
    let started = std::thread::spawn(compute).join();
    assert!(started.unwrap() > 0.0, "in a thread that it started");
}

/// A checkpoint is written by another thread than the one that trains.
#[test]
fn a_thread_that_has_launched_nothing_reads_what_another_one_computed() {
    let _alone = alone();
    let Some(device) = device() else { return };
    let read = move || {
        let storage = upload(device, &CpuStorage::F32(vec![3.0; 5]));
        storage.to_cpu_storage().unwrap().as_slice::<f32>().unwrap() == [3.0; 5]
    };
    assert!(std::thread::spawn(read).join().unwrap());
}
