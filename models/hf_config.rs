//! Reading a Hugging Face `config.json`, in the layout of published checkpoints and in that of transformers 5.
//!
//! Keys without meaning for training (`transformers_version`, `use_cache`, ...) are passed over, as
//! transformers does; a key that would change the numbers and is not supported is an error.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tt_nn::RopeScaling;

use crate::error::{Error, Result};

/// A `config.json` being read.
pub struct HfConfig<'a>(pub &'a Value);

/// What `config.json` says of rotary positions.
#[derive(Debug, Default, PartialEq)]
pub struct HfRope {
    /// Base of the frequencies, if it is there.
    pub theta: Option<f64>,
    /// How frequencies are scaled for longer contexts; `None`: not at all.
    pub scaling: Option<RopeScaling>,
}

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

    /// The value of a key. Error: it is missing, or of another type.
    pub fn require<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        self.get(key)?
            .ok_or_else(|| Error::HfConfig(format!("`{key}` is missing")))
    }

    /// Rotary positions: `rope_theta` and `rope_scaling`, or `rope_parameters` with both in transformers 5.
    /// Error: a kind of scaling, or rotation of a part of the head, that is not supported.
    pub fn rope(&self, max_positions: usize) -> Result<HfRope> {
        let mut rope = HfRope {
            theta: self.get("rope_theta")?,
            scaling: None,
        };
        let mut partial: Option<f64> = self.get("partial_rotary_factor")?;
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(mut parameters) = self.get::<Map<String, Value>>(key)? else {
                continue;
            };
            if let Some(theta) = parameters.remove("rope_theta") {
                rope.theta = theta.as_f64().or(rope.theta);
            }
            if let Some(factor) = parameters.remove("partial_rotary_factor") {
                partial = factor.as_f64().or(partial);
            }
            rope.scaling = rope_scaling(key, parameters, max_positions)?.or(rope.scaling);
        }
        match partial.filter(|part| *part != 1.0) {
            None => Ok(rope),
            Some(part) => Err(Error::HfConfig(format!(
                "`partial_rotary_factor`: {part} is not supported, only 1"
            ))),
        }
    }
}

/// `parameters` of the key `key`, as old (`type`) or newer (`rope_type`) checkpoints write them.
fn rope_scaling(
    key: &str,
    mut parameters: Map<String, Value>,
    max_positions: usize,
) -> Result<Option<RopeScaling>> {
    let fail = |why: String| Err(Error::HfConfig(format!("`{key}`: {why}")));
    let old = parameters.remove("type");
    let kind = parameters.get("rope_type").cloned().or(old);
    match kind.as_ref().and_then(Value::as_str) {
        Some("default") => return Ok(None),
        None if parameters.is_empty() => return Ok(None),
        Some("linear") => {}
        Some("llama3") => {
            let original = parameters.entry("original_max_position_embeddings");
            original.or_insert_with(|| max_positions.into());
        }
        Some(kind) => return fail(format!("rope type `{kind}` is not supported by this model")),
        None => {
            let keys: Vec<_> = parameters.keys().map(String::as_str).collect();
            return fail(format!("no `rope_type`, but {}", keys.join(", ")));
        }
    }
    parameters.extend(kind.map(|kind| ("rope_type".to_owned(), kind)));
    match serde_json::from_value(Value::Object(parameters)) {
        Ok(scaling) => Ok(Some(scaling)),
        Err(error) => fail(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINEAR: RopeScaling = RopeScaling::Linear { factor: 4.0 };
    const LLAMA3: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };

    #[test]
    fn rope_is_read_in_every_form_that_checkpoints_have() {
        let forms = [
            (json!({}), None, None),
            (
                json!({"rope_theta": 1e6, "rope_scaling": null}),
                Some(1e6),
                None,
            ),
            (
                json!({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4}}),
                Some(1e6),
                Some(LINEAR),
            ),
            (
                json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}}),
                None,
                Some(LINEAR),
            ),
            (
                json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
                Some(1e6),
                None,
            ),
            (
                json!({"rope_theta": 5e5, "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                }}),
                Some(5e5),
                Some(LLAMA3),
            ),
            (
                json!({"rope_parameters": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64, "rope_theta": 5e5,
                }}),
                Some(5e5),
                Some(LLAMA3),
            ),
        ];
        for (config, theta, scaling) in forms {
            let rope = HfConfig(&config).rope(64).unwrap();
            assert_eq!(rope, HfRope { theta, scaling }, "{config}");
        }
    }

    #[test]
    fn rope_that_is_not_supported_is_refused_by_name() {
        for (config, names) in [
            (
                json!({"rope_scaling": {"type": "yarn", "factor": 2.0}}),
                ["rope_scaling", "yarn"],
            ),
            (
                json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
                ["rope_parameters", "full_attention"],
            ),
            (
                json!({"rope_scaling": {"type": "linear"}}),
                ["rope_scaling", "factor"],
            ),
            (
                json!({"rope_scaling": {"type": "linear", "factor": 2.0, "short_factor": 1.0}}),
                ["rope_scaling", "short_factor"],
            ),
            (
                json!({"partial_rotary_factor": 0.5}),
                ["partial_rotary_factor", "0.5"],
            ),
        ] {
            let message = HfConfig(&config).rope(64).unwrap_err().to_string();
            for name in names {
                assert!(message.contains(name), "{name} in {message}");
            }
        }
    }
}
