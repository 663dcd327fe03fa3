//! What the configuration can choose by name: the tables of the plug-in crates, with what a user's own program added.

use anyhow::Context;
use serde_json::Value;
use tt_collators::BuildCollator;
use tt_config::{Entry, Table};
use tt_data::OpenSource;
use tt_metrics::BuildSink;
use tt_models::BuildModel;
use tt_optimizers::BuildOptimizer;
use tt_report::{Column, Table as Columns};
use tt_train::BuildTrainer;

use crate::configs::Files;

#[derive(Clone)]
pub(crate) struct Plugins {
    pub(crate) models: Table<BuildModel>,
    pub(crate) trainers: Table<BuildTrainer>,
    pub(crate) optimizers: Table<BuildOptimizer>,
    pub(crate) collators: Table<BuildCollator>,
    pub(crate) sources: Table<OpenSource>,
    pub(crate) sinks: Table<BuildSink>,
    /// Their config files.
    pub(crate) configs: Files,
}

impl Plugins {
    pub(crate) fn built_in() -> Self {
        Self {
            models: tt_models::TABLE,
            trainers: tt_trainers::TABLE,
            optimizers: tt_optimizers::TABLE,
            collators: tt_collators::TABLE,
            sources: tt_data::SOURCES,
            sinks: tt_metrics::TABLE,
            configs: &[],
        }
    }

    /// What there is, one line each, by the key that names it.
    pub(crate) fn listing(&self) -> String {
        [
            section("model.type", &self.models),
            section("trainer.type", &self.trainers),
            section("trainer.optimizer.type", &self.optimizers),
            section("trainer.lr_scheduler.type", &tt_optimizers::SCHEDULES),
            section("data.dataset.url", &self.sources),
            section("data.collator.type", &self.collators),
            section("logging.sinks.NAME.type", &self.sinks),
        ]
        .join("\n")
    }

    /// The model that a checkpoint's `config.json` names: `Qwen2ForCausalLM` is `qwen2.Qwen2ForCausalLM`, and so is what
    /// Hugging Face calls it without its head, `Qwen2Model`.
    pub(crate) fn model_of_checkpoint(
        &self,
        hf_config: &Value,
    ) -> anyhow::Result<&Entry<BuildModel>> {
        let named = hf_config["architectures"][0].as_str();
        let class = named.context("config.json names no architecture")?;
        let is_whole = |name: &str| name == class;
        let is_headless = |name: &str| {
            let family = class.strip_suffix("Model");
            let task = family.and_then(|family| name.strip_prefix(family));
            task.is_some_and(|task| task.starts_with("For") || task.starts_with("LMHead"))
        };
        let find = |is_it: &dyn Fn(&str) -> bool| {
            let mut entries = self.models.entries().iter();
            entries.find(|entry| entry.name.rsplit('.').next().is_some_and(is_it))
        };
        find(&is_whole)
            .or_else(|| find(&is_headless))
            .with_context(|| {
                let known = self.models.names().join(", ");
                format!("config.json names the architecture `{class}`; there are {known}")
            })
    }
}

fn section<B: Clone>(key: &str, table: &Table<B>) -> String {
    let mut listing = Columns::new([Column::left(), Column::left()]);
    listing.line(format!("{key}:"));
    for entry in table.entries() {
        listing.row([format!("  {}", entry.name).as_str(), entry.about]);
    }
    listing.to_string()
}
