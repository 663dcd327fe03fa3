//! The larger sinks.

pub mod wandb;
