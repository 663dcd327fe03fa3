//! The frozen model under an adapter: where it is from, and whether it is still the same.

use serde::{Deserialize, Serialize};
use tt_adapters::BaseDType;

use crate::error::{Error, Result};

/// Where the weights of a base are from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseOrigin {
    /// Loaded from this folder or file.
    Pretrained(String),
    /// Drawn from this seed.
    Seed(u64),
}

/// The frozen model under an adapter, as a checkpoint of the adapter remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Base {
    /// Where its weights are from.
    pub origin: BaseOrigin,
    /// What its weights are kept in.
    pub dtype: BaseDType,
    /// BLAKE3 of the weights' paths, shapes and values.
    pub fingerprint: String,
}

impl Base {
    /// Error: `self`, the base at hand, is not `saved`, which the adapter was trained on.
    pub fn check(&self, saved: &Base) -> Result<()> {
        if self.fingerprint == saved.fingerprint {
            return Ok(());
        }
        let (then, now) = (&saved.fingerprint, &self.fingerprint);
        let what = match (&saved.origin, &self.origin) {
            (before, after) if before != after => {
                format!("the adapter was trained on {before}, this is {after}")
            }
            (origin, _) if saved.dtype != self.dtype => {
                format!("{origin} is held in another base_dtype")
            }
            (origin, _) => format!("{origin} has changed since"),
        };
        let why = format!(
            "another base model: {what} (fingerprint {:.16}, was {:.16})",
            now, then
        );
        Err(Error::State(why))
    }
}

impl std::fmt::Display for BaseOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pretrained(path) => f.write_str(path),
            Self::Seed(seed) => write!(f, "the weights drawn from seed {seed}"),
        }
    }
}
