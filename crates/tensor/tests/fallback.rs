//! An operation of a user's own without kernels, on a TPU that may fall back: a process of its own, as that is an option of
//! the device's opening.

#[allow(dead_code)] // it makes no mistakes here
#[path = "common/cube.rs"]
mod cube;

use cube::{Cube, run};
use tt_tensor::{Device, TpuDevice, TpuOptions};

#[test]
fn it_runs_on_the_cpu_and_is_counted_on_a_tpu() {
    if !tt_testkit::has_tpu() {
        return;
    }
    let options = TpuOptions {
        cores: Some(1),
        ..TpuOptions::default()
    };
    let tpu = TpuDevice::open(&options).unwrap();
    let there = run(Cube::default(), Device::Tpu(tpu)).unwrap();
    assert_eq!(there, run(Cube::default(), Device::Cpu).unwrap());
    assert_eq!(tpu.stats().fallbacks["cube"], 2, "forward and gradient");
}
