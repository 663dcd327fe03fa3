//! What the reference of the configuration is generated from, by `xtask/docs`.

use schemars::{Schema, schema_for};

use crate::config::AppConfig;

pub use crate::configs::EMBEDDED;

/// The whole configuration but the keys of plug-ins.
pub fn schema() -> Schema {
    schema_for!(AppConfig)
}
