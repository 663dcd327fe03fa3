//! The emulator's threads that poll sleep between looks.

use std::fs;
use std::time::Duration;

use crate::alone;
use crate::common::{chip, device};
use tt_tpu::Chip;

/// How often they have given up a processor by themselves; a loop without rest never does.
fn sleeps() -> u64 {
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let pollers: Vec<u64> = threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok())
        .filter_map(|status| {
            let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
            let name = value("Name:\t")?;
            let is_poller = ["ap_main", "stream#"].iter().any(|it| name.starts_with(it));
            is_poller.then_some(value("voluntary_ctxt_switches:\t")?.parse().ok()?)
        })
        .collect();
    assert!(pollers.len() >= 2, "the emulator has other threads now");
    pollers.iter().sum()
}

#[test]
fn the_emulators_pollers_rest() {
    let _alone = alone();
    if device().is_none() || chip() != Chip::Bm1690 {
        return;
    }
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let slept = sleeps() - before;
    assert!(slept > 50, "{slept} times in a second");
}
