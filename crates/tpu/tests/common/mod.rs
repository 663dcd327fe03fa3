//! The device of a test binary, and what the tests of the CPU's kernels bring along.
#![allow(dead_code)] // every test binary uses its own part

#[path = "../../../cpu/tests/common/mod.rs"]
mod host;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout};
pub use host::*;
use tt_cpu::View;
use tt_tpu::{Chip, Error, Options, TpuDevice, TpuStorage};

/// The chip that is emulated.
pub fn chip() -> Chip {
    let named = std::env::var("TT_TPU_CHIP");
    named.map_or(Chip::Bm1690, |name| name.parse().expect("a chip"))
}

/// The device, the same for all tests of a binary; `TT_TPU_CHIP` says of which chip. Without the vendor's libraries a test says so and passes, but not in CI.
pub fn device() -> Option<TpuDevice> {
    let options = Options {
        cores: Some(2),
        chip: Some(chip()),
        batched: std::env::var("TT_TPU_MODE").is_ok_and(|mode| mode == "batch"),
        ..Options::default()
    };
    match tt_tpu::TpuDevice::open(&options) {
        Ok(device) => Some(device),
        Err(Error::Sdk(why)) if std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED, NOTHING WAS TESTED: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A storage of the device and its layout.
pub struct TpuOperand {
    pub storage: TpuStorage,
    pub layout: Layout,
}

impl TpuOperand {
    pub fn new(device: TpuDevice, host: &Operand) -> Self {
        Self {
            storage: upload(device, &host.storage),
            layout: host.layout.clone(),
        }
    }

    pub fn view(&self) -> View<'_, TpuStorage> {
        (&self.storage, &self.layout)
    }
}

/// Between -1 and 1.026, no two alike near each other.
pub fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * 7919 + i / 613 + seed * 331) % 1013) as f32 / 500.0 - 1.0)
        .collect()
}

/// What a storage holds, as f32.
pub fn values(storage: &TpuStorage) -> Vec<f32> {
    widened(&storage.to_cpu_storage().expect("the device answers"))
}

pub fn upload(device: TpuDevice, data: &CpuStorage) -> TpuStorage {
    TpuStorage::upload(device, data).expect("the device has room")
}

/// How often a kernel was launched so far; other tests of the binary may be at it too.
pub fn launches(device: TpuDevice, kernel: &str) -> u64 {
    let stats = device.stats();
    stats.launches.get(kernel).copied().unwrap_or(0)
}

pub fn fallbacks(device: TpuDevice, op: &str) -> u64 {
    device.stats().fallbacks.get(op).copied().unwrap_or(0)
}
