//! Sophgo TPUs: the vendor's runtime, our kernels, and candle's backend traits over them.
//!
//! The runtime is loaded when the device is opened, so a binary needs nothing of it to be built or to run without.
//! The kernels (`kernels/*.c`) are compiled with the binary and carried by it.

mod candle;
mod device;
mod error;
mod exit;
mod fallback;
pub mod flight;
mod fused;
mod launch;
mod module;
mod ops;
mod plant;
pub mod sdk;
mod storage;
pub mod streams;
mod sys;

pub use device::{Options, Stats, TpuDevice};
pub use error::{Error, Result};
pub use storage::TpuStorage;
pub use sys::RUNTIME_SYMBOLS;

/// Opens the device of this process, or returns it if it is open with the same options.
pub fn open(options: &Options) -> Result<TpuDevice> {
    TpuDevice::open(options)
}
