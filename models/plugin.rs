//! From the group `model` of a configuration, or a checkpoint's `config.json`, to a model.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_config::{Diagnostic, Diagnostics, Entry, Node, Place, Section};

use crate::Model;
use crate::error::{Error, Result};

/// The config of a model: what its YAML says and what a checkpoint's `config.json` says.
pub trait ModelConfig: DeserializeOwned + Serialize + JsonSchema {
    /// From `config.json`; by default its keys are those of the config. Error: a key is missing, has the wrong type or
    /// asks for the unsupported.
    fn from_hf(config: &Value) -> Result<Self> {
        Self::deserialize(config).map_err(|error| Error::HfConfig(error.to_string()))
    }

    /// Takes over from `ours` how the model is trained (dropout), which no checkpoint decides; by default nothing.
    fn with_training_options(self, _ours: &Self) -> Self {
        self
    }

    /// Error: sizes that do not fit each other.
    fn build(self) -> Result<Arc<dyn Model>>;
}

/// Builds a model; made by [`entry`].
#[derive(Clone, Copy, Debug)]
pub struct BuildModel {
    /// From the group `model` and, if training starts from a checkpoint, that checkpoint's `config.json`.
    pub from_config: ReadModel,
    /// From a checkpoint's `config.json` alone.
    pub from_hf: fn(&Value) -> Result<Arc<dyn Model>>,
}

/// Reads the group `model`; the value is a checkpoint's `config.json`.
pub type ReadModel =
    fn(&Section<'_>, Option<&Value>) -> std::result::Result<Arc<dyn Model>, Diagnostics>;

/// The line of a model in a table: `name` is `file.Type`, the type as checkpoints name it.
pub const fn entry<C: ModelConfig>(name: &'static str, about: &'static str) -> Entry<BuildModel> {
    let build = BuildModel {
        from_config: from_config::<C>,
        from_hf: |config| C::from_hf(config)?.build(),
    };
    Entry::new::<ModelSection<C>>(name, about, build)
}

/// The group `model`: what all models share, and the config `C` of the one that `type` names.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ModelSection<C> {
    /// The model: `file.Type`.
    #[serde(rename = "type")]
    _kind: String,
    /// Weights to start from: a folder in Hugging Face layout, a `.safetensors` file, an index of several, or a
    /// `.gguf` file of llama.cpp's, whose weights are dequantised; or `user/name[@revision]` or `hf://...` on the
    /// Hugging Face Hub.
    #[serde(default, rename = "pretrained_url")]
    _pretrained_url: Option<String>,
    /// What is run again in the backward pass; see `model.remat`.
    #[serde(default, rename = "remat")]
    _remat: Option<Map<String, Value>>,
    /// Small weights to train on the frozen model; see `model.adapter`.
    #[serde(default, rename = "adapter")]
    _adapter: Option<Map<String, Value>>,
    /// Which rank holds which part of a parameter; see `model.sharding`.
    #[serde(default, rename = "sharding")]
    _sharding: Option<Map<String, Value>>,
    #[serde(flatten)]
    config: C,
}

/// A checkpoint's `config.json` decides over the configuration files: their sizes are for training from scratch. What
/// the command line says was asked for, so it must agree.
fn from_config<C: ModelConfig>(
    section: &Section<'_>,
    hf_config: Option<&Value>,
) -> std::result::Result<Arc<dyn Model>, Diagnostics> {
    let ours = section.extract::<ModelSection<C>>()?.config;
    let config = match hf_config {
        None => ours,
        Some(hf_config) => {
            let config = C::from_hf(hf_config).map_err(|error| located(section, error))?;
            let config = config.with_training_options(&ours);
            agrees_with_command_line(section, &ours, &config)?;
            config
        }
    };
    Ok(config.build().map_err(|error| located(section, error))?)
}

fn agrees_with_command_line<C: Serialize>(
    section: &Section<'_>,
    ours: &C,
    config: &C,
) -> std::result::Result<(), Diagnostics> {
    let [given, actual] = [ours, config].map(|c| serde_json::to_value(c).unwrap_or_default());
    let mut problems = Diagnostics::new();
    for (key, node) in section.node().and_then(Node::as_map).into_iter().flatten() {
        match actual.get(key.as_str()) {
            Some(value) if is_asked_for(node) && given.get(key.as_str()) != Some(value) => problems
                .push(
                    Diagnostic::new(format!(
                        "`{}.{key}` contradicts the checkpoint",
                        section.path()
                    ))
                    .at(&node.origin)
                    .label(format!("its config.json says {value}")),
                ),
            _ => {}
        }
    }
    problems.into_result(())
}

/// Whether the command line gave the value, or a part of it.
fn is_asked_for(node: &Node) -> bool {
    let mut parts = node.as_map().into_iter().flatten();
    matches!(node.origin.place, Place::Argument(_)) || parts.any(|(_, part)| is_asked_for(part))
}

/// The error at the key it is about.
fn located(section: &Section<'_>, error: Error) -> Diagnostic {
    match error {
        Error::Config { key, ref why } => {
            let at = section.section(key);
            at.error(format!("`{}`: {why}", at.path()))
        }
        // What the file says is wrong is no fault of a size that stands here.
        Error::HfConfig(_) => section.section("pretrained_url").error(error.to_string()),
        other => section.error(other.to_string()),
    }
}
