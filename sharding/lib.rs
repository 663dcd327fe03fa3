//! Sharding: which rank holds which part of a parameter, when the whole is gathered, and when gradients are summed.
//!
//! A policy over parameter paths, applied from outside: models do not know of it. The paths and their axes are those of
//! easy-torch-tpu's YAML (`model.layers.*.self_attn.q_proj.weight: [fsdp, null]`).
//!
//! ```
//! use tt_dist::{Mesh, MeshAxes};
//! use tt_nn::{Init, ParamKind, ParamSpec};
//! use tt_sharding::{Layout, ShardingConfig};
//!
//! let config: ShardingConfig = serde_json::from_str(r#"{"layers.*.weight": ["fsdp", null]}"#).unwrap();
//! let (path, shape) = ("layers.0.weight".to_owned(), vec![5, 4]);
//! let spec = ParamSpec { path, shape, init: Init::Ones, kind: ParamKind::Linear };
//! let mesh = Mesh::new(&MeshAxes { fsdp: Some(2), ..MeshAxes::default() }, &MeshAxes::default(), 2).unwrap();
//! let layout = Layout::new(&config, &[spec.clone()], str::to_owned, &[], |_| false, &mesh).unwrap();
//! assert_eq!(layout.shard(&spec, 1).local_shape(), [3, 4]);
//! ```
//!
//! Source: Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO); Zhao et al. 2023, arXiv:2304.11277 (FSDP).

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod config;
mod error;
mod gatherer;
mod layout;
mod links;
mod pieces;
mod sharded;
mod shared;
mod traffic;

pub use config::{AxisNames, Gather, ShardingConfig, Sums};
pub use error::{Error, Result};
pub use layout::Layout;
pub use pieces::Pieces;
pub use sharded::Sharded;
pub use traffic::{Exchange, Load, Traffic};
