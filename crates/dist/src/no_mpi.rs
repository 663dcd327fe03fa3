//! Stands for `mpi.rs` in a program that is built without it.

use std::sync::Arc;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::error::{Error, Result};

/// Whether this program can be one of several processes.
pub const IS_BUILT_IN: bool = false;

/// There are none.
pub enum Processes {}

impl Processes {
    /// Error: always.
    pub fn begin(_size: usize) -> Result<Self> {
        let why = "this program was built without it; cargo build --release --features mpi makes one that has it";
        Err(Error::Mpi(why.to_owned()))
    }

    /// Which of them this is.
    pub fn rank(&self) -> usize {
        match *self {}
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        match *self {}
    }

    /// The machine that each runs on.
    pub fn hosts(&self) -> &[String] {
        match *self {}
    }

    /// How many of them run on the same cores as this one.
    pub fn neighbours(&self) -> usize {
        match *self {}
    }

    /// All of them as one group.
    pub fn world(&self, _timeout: Option<Duration>) -> Arc<dyn Communicator> {
        match *self {}
    }

    /// Whether one of them has failed.
    pub fn have_failed(&self) -> bool {
        match *self {}
    }

    /// Their chips are linked.
    pub fn set_linked(&self) {
        match *self {}
    }

    /// Takes leave of the others.
    pub fn end(&self) {
        match *self {}
    }

    /// Ends all processes at once.
    pub fn abort(&self, _code: u8) -> ! {
        match *self {}
    }
}
