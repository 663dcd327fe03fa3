//! What the running program is called, where it is named: help, version, commands to type, completion.
//!
//! One of a user's own says it by [`App::named`](crate::App::named); it is `tpu-train` otherwise.

use std::sync::OnceLock;

/// A program by its name on the command line, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub name: &'static str,
    pub version: &'static str,
}

/// Ours, whatever the program that has it in it is called.
pub(crate) const TPU_TRAIN: Program = Program {
    name: "tpu-train",
    version: env!("CARGO_PKG_VERSION"),
};

/// Of the process: commands to type are made in many places, none of which should be handed this.
static RUNNING: OnceLock<Program> = OnceLock::new();

/// Says which program is running; the first to say so is right.
pub(crate) fn set(program: Program) {
    RUNNING.get_or_init(|| program);
}

/// The program that is running.
pub(crate) fn running() -> Program {
    *RUNNING.get().unwrap_or(&TPU_TRAIN)
}
