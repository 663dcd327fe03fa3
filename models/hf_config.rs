//! Reading a Hugging Face `config.json`, in the layout of published checkpoints and in that of transformers 5.
//!
//! Keys without meaning for training (`transformers_version`, `use_cache`, ...) are passed over, as
//! transformers does; a key that would change the numbers and is not supported is an error.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};

/// A `config.json` being read.
pub(crate) struct HfConfig<'a>(pub &'a Value);

impl HfConfig<'_> {
    /// The value of `key`, if it is there and not null. Error: it has another type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|error| Error::HfConfig(format!("`{key}`: {error}"))),
        }
    }

    pub fn require<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        self.get(key)?
            .ok_or_else(|| Error::HfConfig(format!("`{key}` is missing")))
    }

    /// The base of the rotary frequencies: `rope_theta`, or `rope_parameters.rope_theta` in transformers 5.
    /// Error: frequencies that are scaled, which this model does not support.
    pub fn rope_theta(&self) -> Result<Option<f64>> {
        for key in ["rope_parameters", "rope_scaling"] {
            let scaling: Option<Value> = self.get(key)?;
            let kind = scaling
                .as_ref()
                .and_then(|s| s.get("rope_type").or_else(|| s.get("type")))
                .and_then(Value::as_str);
            if let Some(kind) = kind.filter(|kind| *kind != "default") {
                let why = format!("`{key}`: rope type `{kind}` is not supported by this model");
                return Err(Error::HfConfig(why));
            }
            let theta = scaling.as_ref().and_then(|s| s.get("rope_theta"));
            if let Some(theta) = theta.and_then(Value::as_f64) {
                return Ok(Some(theta));
            }
        }
        self.get("rope_theta")
    }
}
