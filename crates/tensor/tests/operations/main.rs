//! Operations, forward and gradient, on every device; and the tape.
//!
//! One test binary, so that the emulator of the TPU starts once.

mod fused;
mod meta;
mod operation;
mod ops;
mod precision;
mod tape;
