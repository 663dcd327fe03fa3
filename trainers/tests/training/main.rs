//! Training through the public API: steps that go wrong, other readers of our checkpoints, and the TPU.

#[path = "../common/mod.rs"]
mod common;

mod bad_steps;
mod candle_transformers;
mod tpu;
mod tpu_support;
