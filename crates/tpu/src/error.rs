//! What can go wrong with the device.

use std::borrow::Cow;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Sdk(#[from] crate::sdk::SdkError),
    #[error("{}: {cause}", path.display())]
    Library { path: PathBuf, cause: String },
    /// The binary was built without kernels for the target.
    #[error("this program was built without kernels for the {target}: {why}")]
    NoKernels { target: &'static str, why: String },
    /// A chip's kernels call functions of a library of the vendor's.
    #[error(
        "{library}, with which kernels run on a chip, is in none of {looked_in}; it comes with the vendor's tpu_mlir: `cargo xtask sdk` takes it from there"
    )]
    NoVendorKernels {
        library: &'static str,
        looked_in: String,
    },
    #[error("the kernel module: {0}")]
    Module(String),
    /// Of a user's own kernels.
    #[error("the kernels `{module}`: {why}")]
    OwnModule { module: String, why: String },
    #[error("the vendor's kernels: {0}")]
    Vendor(String),
    #[error("{call}: the runtime says {status}")]
    Runtime { call: &'static str, status: i32 },
    #[error(
        "out of device memory: {bytes} bytes asked for, {live_bytes} in use, {free_bytes} kept for reuse"
    )]
    OutOfMemory {
        bytes: u64,
        live_bytes: u64,
        free_bytes: u64,
    },
    #[error("launch {sequence} ({op}): {fault}")]
    Fault {
        sequence: u32,
        op: &'static str,
        fault: Cow<'static, str>,
    },
    #[error("{op} has no kernel on this device, and device.fallback=error forbids the CPU")]
    NoKernel { op: &'static str },
    #[error("{0:?} has no form on this device")]
    DType(candle_core::DType),
    #[error("a tensor of {0} dims that cannot be joined; the device takes eight")]
    Rank(usize),
    /// What an operation does not take: a dtype, a shape, a range.
    #[error("{0}")]
    Operand(String),
    #[error("{0} does not fit 32 bits, and the device has no wider integers")]
    Narrow(i64),
    #[error("{0}")]
    InjectedFault(String),
    #[error(
        "the device is open already, with another number of cores, memory, fallback, kernels or sync: one process has one"
    )]
    AlreadyOpen,
    #[error("{path}: {cause}", path = path.display())]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        candle_core::Error::wrap(error)
    }
}
