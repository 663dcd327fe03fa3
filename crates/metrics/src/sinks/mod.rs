//! Sinks for other programs.

mod proto;
pub(crate) mod tensorboard;
pub mod wandb;
