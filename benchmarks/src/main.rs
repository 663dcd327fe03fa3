//! Training speed of one Qwen2 shape: `cargo run --release -p tt-benchmarks -- [key=value ...]`.
//!
//! All sides train the same model on the same fixed batch of random tokens, on the CPU: forward, loss, backward,
//! AdamW; ours in f32 and in bf16, candle-nn in f32. They take turns, step by step, so that a machine that slows down slows both. Reported are tokens per
//! second of the median step, after warm-up steps, the first and last loss (which falls, as the batch is learnt by
//! heart), and the ratios of the speeds.

mod candle_qwen2;
mod our_qwen2;
mod shape;

use std::time::Instant;

use anyhow::Result;
use tt_tensor::Precision;

use shape::Shape;

/// One side of the comparison: each call makes one training step and returns the loss, read back to the host.
type Step = Box<dyn FnMut() -> Result<f32>>;

fn main() -> Result<()> {
    let shape = Shape::from_args(std::env::args().skip(1))?;
    println!("{shape}");
    let mut sides = [
        Side::new("tpu-train f32", our_qwen2::step(&shape, Precision::F32)?),
        Side::new("tpu-train bf16", our_qwen2::step(&shape, Precision::Bf16)?),
        Side::new("candle-nn", candle_qwen2::step(&shape)?),
    ];
    for _ in 0..shape.warmup + shape.steps {
        for side in &mut sides {
            side.run()?;
        }
    }
    let [ours, bf16, candle] = sides.map(|side| side.report(&shape));
    println!(
        "tpu-train is {:.2} times as fast as candle-nn, and bf16 {:.2} times as fast as f32",
        candle / ours,
        ours / bf16
    );
    Ok(())
}

struct Side {
    name: &'static str,
    step: Step,
    seconds: Vec<f64>,
    losses: Vec<f32>,
}

impl Side {
    fn new(name: &'static str, step: Step) -> Self {
        Self {
            name,
            step,
            seconds: Vec::new(),
            losses: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<()> {
        let start = Instant::now();
        self.losses.push((self.step)()?);
        self.seconds.push(start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Prints the side's line and gives the median step in seconds.
    fn report(self, shape: &Shape) -> f64 {
        let mut seconds = self.seconds[shape.warmup..].to_vec();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        println!(
            "{}: {:.0} tokens/s, step {:.1} ms (fastest {:.1} ms), loss {:.3} -> {:.3}",
            self.name,
            shape.tokens() as f64 / median,
            median * 1e3,
            seconds[0] * 1e3,
            self.losses[0],
            self.losses[self.losses.len() - 1],
        );
        median
    }
}
