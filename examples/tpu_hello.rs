//! Adds two random tensors on a Sophgo TPU, or its emulator, and prints them.
//!
//! `cargo run --example tpu_hello`; the vendor's libraries come with `cargo xtask sdk`.

use tt_tensor::{Device, Seed, Tensor, TpuDevice, TpuOptions};

fn main() -> anyhow::Result<()> {
    let tpu = TpuDevice::open(&TpuOptions::default())?;
    let device = Device::Tpu(tpu);
    let a = Tensor::randn(0.0, 1.0, (3, 3), Seed::new(1), device)?;
    let b = Tensor::randn(0.0, 1.0, (3, 3), Seed::new(2), device)?;
    let sum = a.add(&b)?;
    for (name, tensor) in [("a", &a), ("b", &b), ("a + b", &sum)] {
        println!("{name}\n{}", tensor.to_candle()?);
    }
    println!("launches: {:?}", tpu.stats().launches);
    Ok(())
}
