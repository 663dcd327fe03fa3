//! What the running program is called, where it is named: help, version, commands to type, completion.
//!
//! One of a user's own says it by the `App` builder; it is `tpu-train` otherwise.

use std::sync::OnceLock;

/// A program by its name on the command line, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
}

/// Ours, whatever the program that has it in it is called.
pub const TPU_TRAIN: Program = Program {
    name: "tpu-train",
    version: env!("CARGO_PKG_VERSION"),
};

/// Of the process: commands to type are made in many places, none of which should be handed this.
static RUNNING: OnceLock<Program> = OnceLock::new();

/// Says which program is running; the first to say so is right.
pub fn set(program: Program) {
    RUNNING.get_or_init(|| program);
}

/// The process to name to others, if it is not this one.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Says that this process works for another, which is the one that a user has started.
pub fn works_for(process: u32) {
    PROCESS.get_or_init(|| process);
}

/// The process that a user would look for, or stop.
pub(crate) fn process() -> u32 {
    *PROCESS.get_or_init(std::process::id)
}

/// The program that is running.
pub fn running() -> Program {
    *RUNNING.get().unwrap_or(&TPU_TRAIN)
}
