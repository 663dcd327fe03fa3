//! What the device does to a whole process: a fault, a full memory, its output, its threads. These tests take turns.

#[path = "../common/mod.rs"]
mod common;

mod fault;
mod memory;
mod own_module;
mod pollers;
#[cfg(target_env = "gnu")]
mod streams;
mod threads;
mod vendor;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tt_tpu::EMULATOR_FOLDER;

/// Held by a test that must not meet another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test of this binary where kernels are collected: the mode is that of a whole process.
#[track_caller]
fn passes_in_batches(test: &str) {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env("TT_TPU_MODE", "batch")
        .env_remove(EMULATOR_FOLDER)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let (errors, status) = (String::from_utf8_lossy(&ended.stderr), ended.status);
    let is_well = status.success() && said.contains("1 passed");
    assert!(is_well, "{status}\n{said}\n{errors}");
}
