//! Hydra-style composition of layered YAML and TOML, with an origin on every value.
//!
//! Composition follows Hydra 1.3 and OmegaConf 2.3: defaults lists, packages, the override
//! grammar, interpolations and sweeps. Every value knows its file, line and column, or the
//! argument or variable that set it, and the choices that brought its file in. All problems are
//! reported together, each at its place.
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use tt_config::{Composer, Entry, Section, Table};
//!
//! const CONFIGS: &[(&str, &str)] = &[
//!     ("default.yaml", "defaults:\n  - optimizer: adamw\n  - _self_\nlr: 1e-3\n"),
//!     ("optimizer/adamw.yaml", "type: adamw.AdamW\nkwargs: {lr: '${lr}', weight_decay: 0.1}\n"),
//! ];
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct AdamWConfig {
//!     /// Learning rate.
//!     lr: f64,
//!     #[schemars(range(min = 0.0))]
//!     weight_decay: f64,
//! }
//!
//! type Build = fn(&Section<'_>) -> Result<AdamWConfig, tt_config::Diagnostics>;
//! const TABLE: Table<Build> = Table::new(
//!     "optimizer",
//!     &[Entry::new::<AdamWConfig>("adamw.AdamW", "Adam with decoupled decay", |kwargs| {
//!         kwargs.extract()
//!     })],
//! );
//!
//! let composition = Composer::new("default")
//!     .embedded("main", CONFIGS)
//!     .compose(&["lr=5e-5", "optimizer.kwargs.weight_decay=0"])?;
//! let optimizer = composition.section("optimizer");
//! let table = TABLE;
//! let entry = table.choose(&optimizer)?;
//! let kwargs = optimizer.section("kwargs").describe(table.subject(entry));
//! let config = (entry.build)(&kwargs)?;
//! assert_eq!((config.lr, config.weight_decay), (5e-5, 0.0));
//! assert_eq!(
//!     composition.get("optimizer.kwargs.weight_decay").unwrap().origin.to_string(),
//!     "argument optimizer.kwargs.weight_decay=0",
//! );
//! # Ok::<(), tt_config::Diagnostics>(())
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod apply;
mod compare;
mod compose;
mod composition;
mod defaults;
mod diagnostic;
mod environment;
mod extract;
mod grammar;
mod hydra;
mod info;
mod interpolation;
mod merge;
mod ordered;
mod origin;
mod python;
mod repository;
#[cfg(test)]
mod robustness;
mod schema;
mod sweep;
mod table;
mod toml;
mod value;
mod yaml;

pub use compare::Difference;
pub use compose::Composer;
pub use composition::{Composition, MergedFile};
pub use diagnostic::{Diagnostic, Diagnostics, nearest};
pub use extract::Section;
pub use info::Part;
pub use interpolation::resolve::Missing;
pub use ordered::Ordered;
pub use origin::{Choice, Layer, Origin, Place, SourceFile, Span};
pub use schema::key_options;
pub use sweep::ComposedJob;
pub use table::{Entry, Table};
pub use value::{Key, KeyKind, MISSING, Map, Node, Value};
