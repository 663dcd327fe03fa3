//! Checkpoints: snapshot, background writer, manifest, Hugging Face layout, retention, strict
//! loading. Host data only: what a tensor is on a device is for the caller.
//!
//! A [`Snapshot`] goes to the [`Writer`], which writes it in the background, read piece by piece from where its tensors
//! are; [`latest`] finds
//! the newest complete [`Checkpoint`]; [`Weights`] reads the tensors of that, or of any model
//! folder from elsewhere.
//!
//! ```
//! use tt_checkpoint::{Allow, CheckpointConfig, HostTensor, Snapshot, Writer, latest};
//!
//! # let tmp = tempfile::tempdir()?;
//! # let dir = tmp.path();
//! let mut snapshot = Snapshot { step: 100, ..Snapshot::default() };
//! snapshot.model.insert("lm_head.weight".into(), HostTensor::from_f32([2, 2], &[1., 2., 3., 4.]));
//!
//! let mut writer = Writer::open(dir, CheckpointConfig::default())?;
//! writer.submit(snapshot)?; // returns at once
//! writer.finish()?;
//!
//! let checkpoint = latest(dir)?.checkpoint.expect("just written");
//! let weights = checkpoint.model()?;
//! weights.check([("lm_head.weight", &[2, 2][..])], &Allow::default())?;
//! let mut values = Vec::new();
//! weights.read_f32("lm_head.weight", &mut values)?;
//! assert_eq!(values, [1., 2., 3., 4.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(not(target_endian = "little"))]
compile_error!("tensors are copied to and from little-endian files as they lie in memory");

mod adapter;
mod bytes;
mod config;
mod data_file;
mod disk;
mod error;
mod export;
mod gguf;
mod hold;
mod layout;
mod manifest;
mod reader;
mod retention;
mod safetensors_file;
mod source;
mod stream;
mod strict;
mod sys;
mod tensor;
mod tensor_file;
mod weights;
mod writer;

pub use adapter::SavedAdapter;
pub use config::CheckpointConfig;
pub use data_file::write_tensors;
pub use error::{Damage, Error, Problem, Result, SourceError};
pub use export::save_model;
pub use hold::Hold;
pub use layout::Snapshot;
pub use reader::{Checkpoint, Latest, holds_checkpoints, latest};
pub use safetensors::Dtype;
pub use source::{LazyTensor, TensorSource};
pub use stream::write_window_bytes;
pub use strict::{Allow, StrictError, matches};
pub use tensor::{HostTensor, TensorMap};
pub use weights::Weights;
pub use writer::{Saved, Writer, read_along, recover};
