//! What the vendor's libraries must not change.

use std::hint::black_box;

use crate::alone;
use crate::common::device;

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
