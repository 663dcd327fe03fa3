//! Optimizers and schedules against what PyTorch and transformers give.

mod optimizers;
mod options;
mod schedulers;
