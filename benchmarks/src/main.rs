//! Sides of `cargo xtask bench-peers` that are written in Rust; each a process of its own, so that its memory is too.
//!
//! - `tt-benchmarks init SHAPE FOLDER` writes what all sides begin with: `config.json`, `model.safetensors` and
//!   `batch.safetensors` (`input_ids` `[B, T]`).
//! - `tt-benchmarks ours-f32|ours-bf16|ours-lora|candle SHAPE FOLDER` is a side: it says `ready` when it is built, and for each line
//!   on its standard input makes one training step (forward, loss, backward, clipping of the norm to 1, AdamW) and answers
//!   `{"loss": 1.0, "seconds": 0.1}`. `torch_side.py` keeps to the same.

mod candle_side;
mod our_side;
mod shape;

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use tt_tensor::Precision;

use shape::Shape;

/// Each call makes one training step and returns the loss, read back to the host.
type Step = Box<dyn FnMut() -> Result<f32>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, shape, folder] = &arguments[..] else {
        bail!("usage: tt-benchmarks init|ours-f32|ours-bf16|ours-lora|candle SHAPE FOLDER");
    };
    let (shape, folder): (Shape, &Path) = (shape.parse()?, folder.as_ref());
    let step = match what.as_str() {
        "init" => return our_side::write_beginning(&shape, folder),
        "ours-f32" => our_side::step(&shape, Precision::F32, false)?,
        "ours-bf16" => our_side::step(&shape, Precision::Bf16, false)?,
        "ours-lora" => our_side::step(&shape, Precision::F32, true)?,
        "candle" => candle_side::step(&shape, folder)?,
        other => bail!("`{other}`: init, ours-f32, ours-bf16, ours-lora or candle"),
    };
    answer(step)
}

/// A step for each line of the standard input, until it ends.
fn answer(mut step: Step) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    for line in io::stdin().lock().lines() {
        line?;
        let start = Instant::now();
        let loss = step()?;
        let seconds = start.elapsed().as_secs_f64();
        writeln!(
            out,
            "{}",
            serde_json::json!({ "loss": loss, "seconds": seconds })
        )?;
    }
    Ok(())
}
