//! The devices that tests run on.

use std::sync::{Mutex, OnceLock};

use tt_tensor::{Device, TpuDevice};
use tt_tpu::{Chip, Options, sdk::Sdk};

/// Whether there is a TPU to test on: the vendor's libraries, that is. Says so if not, and fails with `CI` set.
pub fn has_tpu() -> bool {
    let Err(why) = Sdk::find(Some(chip())) else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "no TPU to test on: {why}");
    eprintln!("SKIPPED ON THE TPU: {why}");
    false
}

/// The chip that is emulated.
pub fn chip() -> Chip {
    let named = std::env::var("TT_TPU_CHIP");
    named.map_or(Chip::Bm1690, |name| name.parse().expect("a chip"))
}

/// The emulated TPU, on which nothing may fall back to the CPU; `None` where the vendor's libraries are missing, which fails
/// with `CI` set.
///
/// It has two cores, or as many as `TT_TPU_CORES` says: results are the same, and few are faster on a small machine. With
/// `TT_TPU_MODE=batch` kernels are collected. `TT_TPU_CHIP` says which chip is emulated.
pub fn tpu() -> Option<TpuDevice> {
    static TPU: OnceLock<Option<TpuDevice>> = OnceLock::new();
    *TPU.get_or_init(|| {
        if !has_tpu() {
            return None;
        }
        let cores =
            std::env::var("TT_TPU_CORES").map_or(2, |cores| cores.parse().expect("a number"));
        let options = Options {
            cores: Some(cores),
            forbid_fallback: true,
            chip: Some(chip()),
            batched: std::env::var("TT_TPU_MODE").is_ok_and(|mode| mode == "batch"),
            ..Options::default()
        };
        Some(tt_tpu::TpuDevice::open(&options).expect("the TPU opens"))
    })
}

/// Runs a test on the TPU, if there is one, alone, and asserts that it launched kernels there.
pub fn on_tpu(body: impl FnOnce(Device)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let Some(tpu) = tpu() else {
        return;
    };
    // A failed test is no reason for the next one to fail.
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = tpu.stats();
    body(Device::Tpu(tpu));
    let after = tpu.stats();
    let launched: Vec<_> = after
        .launches
        .iter()
        .filter(|(kernel, count)| before.launches.get(*kernel) != Some(*count))
        .map(|(kernel, _)| *kernel)
        .collect();
    assert!(!launched.is_empty(), "the test launched nothing on the TPU");
    println!("launched {}", launched.join(", "));
}

/// Defines a module with one test a device, from a body that takes the device:
/// `on_each_device!(fn name(device) { .. });` gives `name::cpu` and `name::tpu`.
///
/// After `#[full_on_tpu]`, which comes first, `name::tpu` is left to `cargo xtask check --full`.
#[macro_export]
macro_rules! on_each_device {
    (#[full_on_tpu] $(#[$attr:meta])* fn $name:ident($device:ident) $body:block) => {
        $crate::on_each_device!(
            @define [ignore = "for cargo xtask check --full"] $(#[$attr])* fn $name($device) $body
        );
    };
    (@define [$($of_tpu:meta)?] $(#[$attr:meta])* fn $name:ident($device:ident) $body:block) => {
        $(#[$attr])*
        mod $name {
            use super::*;

            fn body($device: $crate::Device) $body

            #[test]
            fn cpu() {
                body($crate::Device::Cpu);
            }

            #[test]
            $(#[$of_tpu])?
            fn tpu() {
                $crate::on_tpu(body);
            }
        }
    };
    ($(#[$attr:meta])* fn $name:ident($device:ident) $body:block) => {
        $crate::on_each_device!(@define [] $(#[$attr])* fn $name($device) $body);
    };
}
