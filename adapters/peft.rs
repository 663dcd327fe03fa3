//! peft's files: `adapter_config.json`, and the names in `adapter_model.safetensors`.
//!
//! A weight is saved as `base_model.model.<path>`; a trained bias of a layer with an adapter as
//! `base_model.model.<layer>.base_layer.bias`, since peft wraps the layer, and of any other as `base_model.model.<path>`.
//! Checked against what peft 0.21 writes and reads.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tt_nn::ParamSpec;

use crate::error::{Error, Result};
use crate::lora::{Lora, LoraConfig};
use crate::targets::Targets;

const PREFIX: &str = "base_model.model.";

/// Keys of `adapter_config.json` that change no number once an adapter has been trained.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    // The layer's own kind decides, in peft too.
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// An adapter on disk, as far as it is read here.
pub struct Saved<'a> {
    /// `adapter_config.json`.
    pub config: &'a Value,
    /// Names in `adapter_model.safetensors`.
    pub tensors: Vec<&'a str>,
}

impl Lora {
    /// The adapter that is saved as `saved`, trained on with the options of `ours`. Errors: it asks for what is not
    /// supported, or does not fit the model.
    pub fn from_peft(saved: &Saved<'_>, ours: LoraConfig, base: &[ParamSpec]) -> Result<Self> {
        let config = Config(saved.config);
        config.check_supported()?;
        // The tensors say which layers there are, whatever form the config names them in (a regular expression, say).
        let layers = saved.tensors.iter().filter_map(|name| {
            let path = name.strip_prefix(PREFIX)?;
            path.strip_suffix(".lora_A.weight").map(str::to_owned)
        });
        let mut layers: Vec<_> = layers.collect();
        layers.sort();
        let config = LoraConfig {
            target_modules: Targets(layers),
            r: config.require("r")?,
            lora_alpha: config.require("lora_alpha")?,
            use_rslora: config.get("use_rslora")?.unwrap_or(false),
            bias: config.get("bias")?.unwrap_or_default(),
            ..ours
        };
        Self::new(config, base).map_err(|error| match error {
            Error::UnmatchedTarget { target, .. } | Error::NotLinear { target, .. } => {
                let name = format!("{PREFIX}{target}.lora_A.weight");
                Error::UnknownTensor { name }
            }
            other => other,
        })
    }

    /// `adapter_config.json`; `base` is where peft finds the base model.
    pub fn peft_config(&self, base: Option<&str>) -> Value {
        let config = self.config();
        json!({
            "alpha_pattern": {},
            "base_model_name_or_path": base,
            "bias": config.bias,
            // peft goes by the layer's class in any case, and warns where this says otherwise.
            "fan_in_fan_out": self.layers().iter().any(|layer| layer.in_out),
            "inference_mode": true,
            "init_lora_weights": true,
            // peft takes an integer in its type, and any number in its formula.
            "lora_alpha": integer_if_whole(config.lora_alpha),
            "lora_dropout": config.lora_dropout,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": config.r,
            "rank_pattern": {},
            "target_modules": self.peft_targets(),
            "task_type": "CAUSAL_LM",
            "use_dora": false,
            "use_rslora": config.use_rslora,
        })
    }

    /// Names that select our layers by peft's rule: short ones if no other layer answers to them, else whole paths.
    fn peft_targets(&self) -> Vec<String> {
        let paths = || self.layers().iter().map(|layer| layer.path.as_str());
        let name = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
        let mut short: Vec<_> = paths().map(name).collect();
        short.sort_unstable();
        short.dedup();
        if self
            .others()
            .iter()
            .any(|other| short.contains(&name(other)))
        {
            paths().map(str::to_owned).collect()
        } else {
            short
        }
    }

    /// The name in `adapter_model.safetensors` of a parameter that is trained.
    pub fn peft_name(&self, path: &str) -> String {
        match path.strip_suffix(".bias") {
            Some(layer) if self.is_adapted(layer) => format!("{PREFIX}{layer}.base_layer.bias"),
            _ => format!("{PREFIX}{path}"),
        }
    }
}

fn integer_if_whole(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// An `adapter_config.json` being read.
struct Config<'a>(&'a Value);

impl Config<'_> {
    fn check_supported(&self) -> Result<()> {
        let kind: Option<String> = self.get("peft_type")?;
        if kind.as_deref() != Some("LORA") {
            return self.refuse("peft_type", "only LORA is supported");
        }
        // Other ways to begin change the base: what was trained belongs to another than the one that is named.
        let init: Option<Value> = self.get("init_lora_weights")?;
        match init {
            None | Some(Value::Bool(_)) => {}
            Some(Value::String(name)) if ["gaussian", "eva", "orthogonal"].contains(&&*name) => {}
            Some(other) => {
                return self.refuse(
                    "init_lora_weights",
                    &format!("{other} changes the base model"),
                );
            }
        }
        let known = [
            "bias",
            "init_lora_weights",
            "lora_alpha",
            "peft_type",
            "r",
            "target_modules",
            "use_rslora",
        ];
        for (key, value) in self.0.as_object().into_iter().flatten() {
            let key = key.as_str();
            let is_off = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => false,
            };
            if !is_off && !known.contains(&key) && !HARMLESS.contains(&key) {
                return self.refuse(key, &format!("{value} is not supported"));
            }
        }
        Ok(())
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match serde_json::from_value(value.clone()) {
                Ok(value) => Ok(Some(value)),
                Err(error) => self.refuse(key, &error.to_string()),
            },
        }
    }

    fn require<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        match self.get(key)? {
            Some(value) => Ok(value),
            None => self.refuse(key, "is missing"),
        }
    }

    fn refuse<T>(&self, key: &str, why: &str) -> Result<T> {
        Err(Error::PeftConfig {
            key: key.to_owned(),
            why: why.to_owned(),
        })
    }
}
