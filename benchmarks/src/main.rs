//! Training speed of one Qwen2 shape: `cargo run --release -p tt-benchmarks -- [key=value ...]`.
//!
//! Every side trains the same model on the same fixed batch of random tokens, in f32 on the CPU: forward, loss, backward,
//! AdamW. Reported are tokens per second of the median step, after warm-up steps, and the first and last loss (which
//! falls, as the batch is learnt by heart).

mod candle_qwen2;
mod shape;

use std::time::Instant;

use anyhow::Result;

use shape::Shape;

/// One side of the comparison: each call makes one training step and returns the loss, read back to the host.
type Step = Box<dyn FnMut() -> Result<f32>>;

fn main() -> Result<()> {
    let shape = Shape::from_args(std::env::args().skip(1))?;
    println!("{shape}");
    measure("candle-nn", &shape, candle_qwen2::step(&shape)?)
}

fn measure(name: &str, shape: &Shape, mut step: Step) -> Result<()> {
    let first_loss = step()?;
    for _ in 1..shape.warmup {
        step()?;
    }
    let mut seconds = Vec::with_capacity(shape.steps);
    let mut last_loss = first_loss;
    for _ in 0..shape.steps {
        let start = Instant::now();
        last_loss = step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    println!(
        "{name}: {:.0} tokens/s, step {:.1} ms (fastest {:.1} ms), loss {first_loss:.3} -> {last_loss:.3}",
        shape.tokens() as f64 / median,
        median * 1e3,
        seconds[0] * 1e3,
    );
    Ok(())
}
