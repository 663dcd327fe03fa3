//! The three f32 products of a linear layer next to the `gemm` crate's, which candle calls: `cargo bench -p tt-cpu --bench
//! products`.
//!
//! Machines are noisy: the two take turns, each figure is the best of them, and only the ratio says something.

use std::time::{Duration, Instant};

use candle_core::{CpuStorage, Device, Layout, Tensor};
use tt_cpu::{FusedOps, Write};

/// Tokens, inputs and outputs of a layer: three sizes of model.
const LAYERS: &[(&str, [usize; 3])] = &[
    ("S attention", [2048, 256, 256]),
    ("S up", [2048, 256, 704]),
    ("S down", [2048, 704, 256]),
    ("M up", [2048, 512, 1408]),
    ("M down", [2048, 1408, 512]),
    ("L attention", [1024, 896, 896]),
    ("L up", [1024, 896, 4864]),
    ("L down", [1024, 4864, 896]),
];
const TURNS: usize = 7;

fn random(len: usize, seed: u64) -> Vec<f32> {
    let key = tt_cpu::RngKey {
        key: 1,
        stream: seed,
    };
    let mut storage = CpuStorage::F32(vec![0.0; len]);
    storage.fill_normal(len, 0.0, 0.5, key).expect("f32");
    storage.as_slice::<f32>().expect("f32").to_vec()
}

/// A matrix stored `[rows, cols]`, or that transposed.
struct Operand {
    ours: (CpuStorage, Layout),
    candles: Tensor,
}

impl Operand {
    fn new(data: &[f32], dims: (usize, usize), is_transposed: bool) -> Self {
        let candles = Tensor::from_slice(data, dims, &Device::Cpu).expect("a shape that fits");
        let layout = Layout::contiguous(dims);
        let (layout, candles) = if is_transposed {
            (
                layout.transpose(0, 1).expect("two dims"),
                candles.t().expect("two dims"),
            )
        } else {
            (layout, candles)
        };
        Self {
            ours: (CpuStorage::F32(data.to_vec()), layout),
            candles,
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn main() {
    println!(
        "{} threads, {}",
        rayon::current_num_threads(),
        tt_cpu::isa()
    );
    println!(
        "{:<14}{:<10}{:>10}{:>10}{:>8}",
        "layer", "product", "ours", "gemm", "ratio"
    );
    // `-- 'L up'` or `-- weight`; cargo itself says `--bench`.
    let only = std::env::args().skip(1).find(|it| !it.starts_with("--"));
    let only = only.unwrap_or_default();
    for &(name, [tokens, inputs, outputs]) in LAYERS {
        let x = random(tokens * inputs, 1);
        let weight = random(outputs * inputs, 2);
        let dy = random(tokens * outputs, 3);
        let (of_x, of_weight, of_dy) = ((tokens, inputs), (outputs, inputs), (tokens, outputs));
        let products = [
            (
                "forward",
                Operand::new(&x, of_x, false),
                Operand::new(&weight, of_weight, true),
            ),
            (
                "input",
                Operand::new(&dy, of_dy, false),
                Operand::new(&weight, of_weight, false),
            ),
            (
                "weight",
                Operand::new(&dy, of_dy, true),
                Operand::new(&x, of_x, false),
            ),
        ];
        for (product, a, b) in products {
            if !format!("{name} {product}").contains(&only) {
                continue;
            }
            let (m, n) = (a.ours.1.dims()[0], b.ours.1.dims()[1]);
            let mut out = CpuStorage::F32(vec![0.0; m * n]);
            let (mut ours, mut gemms) = (Duration::MAX, Duration::MAX);
            for _ in 0..TURNS {
                ours = ours.min(timed(|| {
                    let (a, b) = ((&a.ours.0, &a.ours.1), (&b.ours.0, &b.ours.1));
                    CpuStorage::matmul_into(a, b, &mut out, Write::Assign).expect("a product");
                }));
                gemms = gemms.min(timed(|| {
                    std::hint::black_box(a.candles.matmul(&b.candles).expect("a product"));
                }));
            }
            let gigaflops = |took: Duration| {
                2.0 * (tokens * inputs * outputs) as f64 / took.as_secs_f64() / 1e9
            };
            let (ours, gemms) = (gigaflops(ours), gigaflops(gemms));
            println!(
                "{name:<14}{product:<10}{ours:>10.1}{gemms:>10.1}{:>8.2}",
                ours / gemms
            );
        }
    }
}
