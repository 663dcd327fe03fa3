//! Checkpoints as they are written, kept, found and read: in one program, which links once.

mod common;
mod damage;
mod failures;
mod gguf;
#[cfg(unix)]
mod kill;
mod retention;
mod round_trip;
mod weights;
