//! What the configuration can choose by name, and what builds it.
//!
//! Building has two halves. The first reads a section of the configuration and finds everything that is wrong with it;
//! the second needs weights, and is a closure that the first returns.

use std::sync::Arc;

use anyhow::Context;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tt_config::{Diagnostic, Diagnostics, Entry, Node, Place, Section, Table};
use tt_models::{Model, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Optimizer};
use tt_trainers::{LMTrainer, LMTrainerOptions, Trainer};

/// Builds a model.
#[derive(Clone, Copy, Debug)]
pub struct BuildModel {
    /// From the group `model` and, if training starts from a checkpoint, that checkpoint's `config.json`.
    pub from_config: ReadModel,
    /// From a checkpoint's `config.json` alone.
    pub from_hf: fn(&Value) -> tt_models::Result<Arc<dyn Model>>,
}

/// Reads the group `model`; the value is a checkpoint's `config.json`.
pub type ReadModel = fn(&Section<'_>, Option<&Value>) -> Result<Arc<dyn Model>, Diagnostics>;

/// Builds a trainer from `trainer.kwargs`.
pub type BuildTrainer = fn(&Section<'_>) -> Result<Box<dyn Trainer>, Diagnostics>;

/// Reads `trainer.optimizer.kwargs`; the optimizer is made once there are parameters.
pub type BuildOptimizer = fn(&Section<'_>) -> Result<MakeOptimizer, Diagnostics>;

/// Makes an optimizer for these parameters.
pub type MakeOptimizer =
    Box<dyn FnOnce(&ParamTree) -> tt_optimizers::Result<Box<dyn Optimizer>> + Send>;

/// The tables, with what a user's own program added to them.
#[derive(Clone)]
pub(crate) struct Plugins {
    pub(crate) models: Table<BuildModel>,
    pub(crate) trainers: Table<BuildTrainer>,
    pub(crate) optimizers: Table<BuildOptimizer>,
}

impl Plugins {
    pub(crate) fn built_in() -> Self {
        Self {
            models: MODELS,
            trainers: TRAINERS,
            optimizers: OPTIMIZERS,
        }
    }

    /// The model that a checkpoint's `config.json` names: `Qwen2ForCausalLM` is `qwen2.Qwen2ForCausalLM`.
    pub(crate) fn model_of_checkpoint(
        &self,
        hf_config: &Value,
    ) -> anyhow::Result<&Entry<BuildModel>> {
        let named = hf_config["architectures"][0].as_str();
        let class = named.context("config.json names no architecture")?;
        let entries = self.models.entries().iter();
        let mut found = entries.filter(|entry| entry.name.rsplit('.').next() == Some(class));
        found.next().with_context(|| {
            let known = self.models.names().join(", ");
            format!("config.json names the architecture `{class}`; there are {known}")
        })
    }
}

const MODELS: Table<BuildModel> = Table::new(
    "model",
    &[Entry::new::<ModelSection<Qwen2Config>>(
        "qwen2.Qwen2ForCausalLM",
        "Qwen2: RMSNorm, grouped-query attention, RoPE, SwiGLU",
        BuildModel {
            from_config: |section, hf_config| {
                build_model(section, hf_config, qwen2_from_hf, |config| {
                    Ok(Arc::new(Qwen2ForCausalLM::new(config)?))
                })
            },
            from_hf: |hf_config| {
                let config = Qwen2Config::from_hf(hf_config)?;
                Ok(Arc::new(Qwen2ForCausalLM::new(config)?))
            },
        },
    )],
);

const TRAINERS: Table<BuildTrainer> = Table::new(
    "trainer",
    &[Entry::new::<LMTrainerOptions>(
        "lm_trainer.LMTrainer",
        "causal language modelling",
        |kwargs| {
            let options: LMTrainerOptions = kwargs.extract()?;
            let trainer = LMTrainer::new(options.label_smoothing, options.z_loss);
            Ok(Box::new(trainer))
        },
    )],
);

const OPTIMIZERS: Table<BuildOptimizer> = Table::new(
    "optimizer",
    &[Entry::new::<AdamWConfig>(
        "adamw.AdamW",
        "Adam with decoupled weight decay",
        |kwargs| {
            let config: AdamWConfig = kwargs.extract()?;
            Ok(Box::new(|params| Ok(Box::new(AdamW::new(config, params)?))))
        },
    )],
);

/// The group `model`: what all models share, and the config `C` of the one that `type` names.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ModelSection<C> {
    /// The model: `file.Type`.
    pub r#type: String,
    /// Weights to start from: a folder in Hugging Face layout, a `.safetensors` file or an index of several.
    #[serde(default)]
    pub pretrained_url: Option<String>,
    #[serde(flatten)]
    pub config: C,
}

/// Dropout is how the model is trained, not what it is: no checkpoint decides it.
fn qwen2_from_hf(hf_config: &Value, ours: Qwen2Config) -> tt_models::Result<Qwen2Config> {
    Ok(Qwen2Config {
        hidden_dropout: ours.hidden_dropout,
        ..Qwen2Config::from_hf(hf_config)?
    })
}

/// Builds a model whose config has the type `C`.
///
/// A checkpoint's `config.json` decides over the configuration files: their sizes are for training from scratch. What
/// the command line says was asked for, so it must agree.
fn build_model<C>(
    section: &Section<'_>,
    hf_config: Option<&Value>,
    from_hf: fn(&Value, C) -> tt_models::Result<C>,
    build: fn(C) -> tt_models::Result<Arc<dyn Model>>,
) -> Result<Arc<dyn Model>, Diagnostics>
where
    C: DeserializeOwned + Serialize + JsonSchema,
{
    let mut config = section.extract::<ModelSection<C>>()?.config;
    if let Some(hf_config) = hf_config {
        config = from_hf(hf_config, config).map_err(|error| located(section, error))?;
        agrees_with_command_line(section, &config)?;
    }
    build(config).map_err(|error| located(section, error).into())
}

fn agrees_with_command_line<C: Serialize>(
    section: &Section<'_>,
    config: &C,
) -> Result<(), Diagnostics> {
    let actual = serde_json::to_value(config).unwrap_or_default();
    let mut problems = Diagnostics::new();
    for (key, node) in section.node().and_then(Node::as_map).into_iter().flatten() {
        let is_asked_for = matches!(node.origin.place, Place::Argument(_));
        match actual.get(key.as_str()) {
            Some(value) if is_asked_for && *value != node.to_json() => problems.push(
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
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

/// The error at the key it is about.
fn located(section: &Section<'_>, error: tt_models::Error) -> Diagnostic {
    match error {
        tt_models::Error::Config { key, why } => {
            let at = section.section(key);
            at.error(format!("`{}`: {why}", at.path()))
        }
        other => section.error(other.to_string()),
    }
}
