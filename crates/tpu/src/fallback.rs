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

/// Lets the CPU write into storages of the device.
pub(crate) fn write<const N: usize>(
    op: &'static str,
    outs: [&mut TpuStorage; N],
    body: impl FnOnce([&mut CpuStorage; N]) -> Result<()>,
) -> Result<()> {
    if let Some(out) = outs.first() {
        out.on().fall_back(op)?;
    }
    let mut host = Vec::with_capacity(N);
    for out in &outs {
        host.push(out.to_host()?);
    }
    let mut host: [CpuStorage; N] = host
        .try_into()
        .unwrap_or_else(|_| unreachable!("N were pushed"));
    body(host.each_mut())?;
    for (out, host) in outs.into_iter().zip(&host) {
        *out = TpuStorage::upload(out.on(), host)?;
    }
    Ok(())
}
