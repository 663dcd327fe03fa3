//! The way out for an operation without a kernel: the operands come to the host, the CPU computes, the result goes back.
//!
//! Each use is counted by name ([`crate::Stats::fallbacks`]) and an error where `device.fallback=error`.

use candle_core::{CpuStorage, Result};

use crate::device::TpuDevice;
use crate::storage::TpuStorage;

/// A result of `op` that the CPU computes afresh.
pub(crate) fn compute(
    device: TpuDevice,
    op: &'static str,
    body: impl FnOnce() -> Result<CpuStorage>,
) -> Result<TpuStorage> {
    device.fall_back(op)?;
    Ok(TpuStorage::upload(device, &body()?)?)
}
