//! The ranks of a run: how they are arranged ([`Mesh`]) and what they tell each other ([`Communicator`]).
//!
//! ```
//! use tt_dist::{Communicator, threads};
//!
//! let ranks = threads::group(3, None);
//! let sums: Vec<f32> = std::thread::scope(|scope| {
//!     let work = |rank: std::sync::Arc<dyn Communicator>| {
//!         move || rank.all_reduce(vec![rank.rank() as f32]).map(|sum| sum[0])
//!     };
//!     let handles: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(work(rank))).collect();
//!     handles.into_iter().map(|it| it.join().unwrap().unwrap()).collect()
//! });
//! assert_eq!(sums, [3.0, 3.0, 3.0]);
//! ```
//!
//! What is sent are values on the host: this crate knows no tensor.

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod communicator;
mod error;
mod launcher;
mod mesh;
#[cfg_attr(not(feature = "mpi"), path = "no_mpi.rs")]
pub mod mpi;
mod sums;
pub mod threads;

pub use communicator::{Alone, Communicator};
pub use error::{Error, Peer, Result};
pub use launcher::{Launched, launched};
pub use mesh::{Axis, Mesh, MeshAxes, MeshError, Peers};
pub use sums::FEW;
