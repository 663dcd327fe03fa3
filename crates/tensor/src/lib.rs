//! Tensors with gradients, over candle's backend traits.
//!
//! ```
//! use tt_tensor::{Device, Parameter, Tape, Tensor};
//!
//! # fn main() -> tt_tensor::Result<()> {
//! let weight = Parameter::new("w", Tensor::from_slice(&[3f32, 4.], 2, Device::Cpu)?);
//! let tape = Tape::new();
//! let loss = tape.watch(&weight).sqr()?.sum_all()?;
//! tape.backward(&loss)?;
//! assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [6., 8.]);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Tensor`] is a view of a pooled buffer on a [`Device`]; operations on tensors that a [`Tape`] watches are
//! recorded and undone by [`Tape::backward`]. The operations that decide speed are functions in [`fused`]. An
//! [`Operation`] of one's own is run with [`apply`].

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod device;
mod error;
pub mod fused;
mod links;
mod operation;
mod ops;
mod parameter;
mod precision;
pub mod profile;
mod rng;
mod shard;
mod tape;
mod tensor;

pub use candle_core::{DType, Layout, Shape, WithDType};
pub use device::Device;
pub use error::{Error, Result};
pub use operation::{Operation, Undone, apply};
pub use parameter::Parameter;
pub use precision::Precision;
pub use rng::Seed;
pub use shard::Shard;
pub use tape::{GradientHook, Tape};
pub use tensor::Tensor;
pub use tt_cpu::{AdamParams, CrossEntropyParams, Isa, IsaError, UpdateRule};
pub use tt_meta::{MetaDevice, Usage};
pub use tt_tpu::{Collective, Options as TpuOptions, TpuDevice, trace};
