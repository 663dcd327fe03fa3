//! Sophgo TPUs: the vendor's runtime, our kernels, and candle's backend traits over them.
//!
//! The runtime is loaded when the device is opened, so a binary needs nothing of it to be built or to run without.
//! The kernels (`kernels/*.c`) are compiled with the binary and carried by it. A user's own come in a module beside them:
//! [`OwnModule`], [`kernels!`], [`TpuDevice::launch`].

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod batch;
mod candle;
pub mod chip;
mod collectives;
mod device;
mod error;
mod exit;
mod fallback;
mod fault_injection;
mod firmware;
pub mod flight;
mod float_mode;
mod fused;
mod launch;
mod loaded;
pub mod module;
mod ops;
mod own_module;
mod pollers;
mod runtime;
pub mod sdk;
mod storage;
pub mod streams;
mod sys;
pub mod trace;
pub mod traffic;
mod vendor;

#[doc(hidden)]
pub use bytemuck::NoUninit; // of what `kernels!` expands to
pub use collectives::{Collective, Links};
pub use device::{DEFAULT_MEMORY_BYTES, EMULATOR_FOLDER, Options, Stats, TpuDevice, environment};
pub use error::{Error, Result};
pub use launch::{Header, Kernel, code as dtype_code};
pub use own_module::{BuiltModule, OwnModule};
pub use storage::TpuStorage;
pub use tt_kernels::Chip;
pub use vendor::Provider;
