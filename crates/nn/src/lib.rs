//! Modules hold paths and shapes; [`Forward`] hands out the weights when they are used.
//!
//! ```
//! use tt_nn::{Forward, Linear, ModulePath, ParamTree};
//! use tt_tensor::{Device, Seed, Tensor};
//!
//! # fn main() -> tt_nn::Result<()> {
//! let up = Linear::new(ModulePath::root().join("up"), 4, 8).with_bias();
//! let params = ParamTree::init(&up.params(), Seed::new(0), Device::Cpu)?;
//! let x = Tensor::ones((2, 4), Device::Cpu)?;
//! let y = up.forward(&Forward::inference(&params), &x)?; // [2, 8]
//! assert_eq!(y.dims(), [2, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! Because a model names weights instead of owning them, they can be sharded, offloaded, recomputed or
//! replaced from outside, through [`Hooks`] and [`ParamTree`].

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod activation;
mod attend;
mod attention;
mod dropped_attention;
mod embedding;
mod error;
mod forward;
mod kv_cache;
mod linear;
mod mlp;
mod norm;
mod param_tree;
mod path;
mod path_glob;
mod rope;

pub use activation::Activation;
pub use attend::{AttentionMask, AttentionOptions, attend};
pub use attention::{AttentionShape, SelfAttention};
pub use embedding::{Embedding, PositionEmbedding};
pub use error::{Error, Result};
pub use forward::{Adapter, Forward, Hooks, Positions, Recompute};
pub use kv_cache::KvCache;
pub use linear::Linear;
pub use mlp::GatedMlp;
pub use norm::{LayerNorm, RmsNorm};
pub use param_tree::{Init, ParamKind, ParamSpec, ParamTree};
pub use path::ModulePath;
pub use path_glob::PathGlob;
pub use rope::{Rope, RopeScaling};
