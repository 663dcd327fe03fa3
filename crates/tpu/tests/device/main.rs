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

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test that must not meet another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
