//! From a composed configuration to what a run is made of, in one step that finds every problem.
//!
//! After it there are no strings left to look up: names have become models, trainers and optimizers, and the rest is
//! typed. Nothing is trained, written or locked here.

use std::collections::HashSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tt_collators::{Pipeline, PipelineOptions};
use tt_config::{Composition, Diagnostic, Diagnostics};
use tt_data::{DataConfig, DataError};
use tt_metrics::LoggingConfig;
use tt_models::Model;
use tt_optimizers::MakeOptimizer;
use tt_trainers::{Trainer, TrainerConfig};

use crate::commands::Invocation;
use crate::configs::Groups;
use crate::failure::Failure;
use crate::plugins::Plugins;
use crate::pretrained::Pretrained;

/// The whole configuration of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AppConfig {
    /// Peak learning rate, which the optimizer's config refers to. Kept here so that `lr=5e-5` sets it.
    #[schemars(range(min = 0.0))]
    #[expect(dead_code, reason = "read through the interpolation ${lr}")]
    lr: f64,
    /// Decides initial weights, the order of the data and dropout.
    pub(crate) seed: u64,
    /// Number format of matrix products.
    #[expect(dead_code, reason = "there is one precision so far")]
    precision: Precision,
    /// `auto` continues an unfinished run of the same config, `none` starts afresh; else a run folder or a checkpoint.
    pub(crate) resume: String,
    /// Runs of one project are shown together by trackers.
    #[serde(rename = "project")]
    _project: String,
    /// What to call the run.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Anything worth remembering about the run.
    #[serde(rename = "notes")]
    _notes: Option<String>,
    /// Prints errors in full, for a report of a bug.
    pub(crate) debug: bool,
    /// The model; its keys are those of its type.
    #[serde(rename = "model")]
    _model: Option<Map<String, Value>>,
    /// How it is trained.
    trainer: Option<TrainerConfig>,
    /// What it is trained on.
    pub(crate) data: DataConfig,
    /// What is shown.
    #[serde(default)]
    pub(crate) logging: LoggingConfig,
    /// What it runs on.
    pub(crate) device: DeviceConfig,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Precision {
    /// Single precision throughout.
    F32,
}

/// What a run computes on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceConfig {
    /// The kind of device.
    #[serde(rename = "type")]
    kind: DeviceKind,
    /// Threads of the kernels; null: as `RAYON_NUM_THREADS` says, or one a core. Results are the same for any number.
    #[schemars(range(min = 1))]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum DeviceKind {
    Cpu,
}

impl DeviceConfig {
    pub(crate) fn device(&self) -> tt_tensor::Device {
        match self.kind {
            DeviceKind::Cpu => tt_tensor::Device::Cpu,
        }
    }
}

/// Makes the thread pool of the kernels, for the whole process.
pub(crate) fn start_threads(threads: Option<usize>) -> Result<(), Failure> {
    let Some(threads) = threads else {
        return Ok(()); // rayon's own choice
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build_global().map_err(Failure::run)
}

/// A run, ready to be started.
pub(crate) struct Setup {
    pub(crate) config: AppConfig,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) pretrained: Option<Pretrained>,
    pub(crate) trainer_config: TrainerConfig,
    pub(crate) trainer: Box<dyn Trainer>,
    pub(crate) make_optimizer: MakeOptimizer,
}

impl Setup {
    /// Reads the whole configuration. Everything that is wrong with it is in one error.
    pub(crate) fn read(invocation: &Invocation) -> Result<Self, Diagnostics> {
        let Invocation {
            composition,
            plugins,
            groups,
            ..
        } = invocation;
        let mut problems = Problems::default();
        let config = problems.take(composition.extract::<AppConfig>(""));
        if config.is_some() {
            problems.take(require(&["model", "trainer"], composition, groups));
        }
        // Without a group there is nothing more to say about it.
        let has = |group: &str| composition.get(group).is_some();
        let mut parts = None;
        if has("model") && has("trainer") {
            let pretrained = problems.take(Pretrained::open(composition));
            let model = pretrained.as_ref().and_then(|pretrained| {
                let hf_config = pretrained.as_ref().and_then(Pretrained::config);
                problems.take(build_model(composition, plugins, hf_config))
            });
            if let (Some(Some(pretrained)), Some(model)) = (&pretrained, &model) {
                problems.take(pretrained.check(&**model, composition));
            }
            let trainer = problems.take(build_trainer(composition, plugins));
            let make_optimizer = problems.take(build_optimizer(composition, plugins));
            parts = pretrained.zip(model).zip(trainer.zip(make_optimizer));
        }
        let mut config = config.filter(|_| problems.found.is_empty());
        let trainer_config = config.as_mut().and_then(|config| config.trainer.take());
        match (config.zip(trainer_config), parts) {
            (
                Some((config, trainer_config)),
                Some(((pretrained, model), (trainer, make_optimizer))),
            ) => Ok(Self {
                config,
                model,
                pretrained,
                trainer_config,
                trainer,
                make_optimizer,
            }),
            _ => Err(problems.found),
        }
    }

    /// Opens the data, and checks that data, model and trainer fit together.
    pub(crate) fn open_data(&self, composition: &Composition) -> Result<Pipeline, Diagnostics> {
        self.check_batches(composition)?;
        let options = PipelineOptions {
            seed: self.config.seed,
            micro_batch_size: self.trainer_config.micro_batch_size,
            num_epochs: self.trainer_config.num_epochs,
            ..PipelineOptions::default()
        };
        let data = Pipeline::open(&self.config.data, &options)
            .map_err(|error| problem(composition, data_key(&error), error.to_string()))?;
        self.check_fit(composition, &data)?;
        Ok(data)
    }

    fn check_batches(&self, composition: &Composition) -> Result<(), Diagnostics> {
        let config = &self.trainer_config;
        if config.max_steps.is_none() && config.num_epochs.is_none() {
            let key = "trainer.max_steps";
            let why = format!("`{key}`: either this or `trainer.num_epochs` must be given");
            return Err(problem(composition, key, why).into());
        }
        let (global, micro) = (config.global_batch_size, config.micro_batch_size);
        if !global.is_multiple_of(micro) {
            let key = "trainer.global_batch_size";
            let why =
                format!("`{key}`: {global} is no multiple of `trainer.micro_batch_size` {micro}");
            return Err(problem(composition, key, why).into());
        }
        Ok(())
    }

    fn check_fit(&self, composition: &Composition, data: &Pipeline) -> Result<(), Diagnostics> {
        let mut problems = Diagnostics::new();
        let (length, longest) = (data.sequence_length(), self.model.max_positions());
        if length > longest {
            let key = "data.sequence_length";
            let why = format!(
                "`{key}`: {length} is more than the model's max_position_embeddings {longest}"
            );
            problems.push(problem(composition, key, why));
        }
        let (needed, vocab_size) = (data.tokenizer().vocab_size(), self.model.vocab_size());
        if vocab_size < needed {
            let key = "model.vocab_size";
            let why =
                format!("`{key}`: {vocab_size} is less than the {needed} tokens of the tokenizer");
            problems.push(problem(composition, key, why));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// A problem at the place where `key` was given, or at the nearest part around it.
fn problem(composition: &Composition, key: &str, message: String) -> Diagnostic {
    match composition.get(key) {
        Some(node) => Diagnostic::new(message).at(&node.origin),
        None => composition.section(key).error(message),
    }
}

/// Which key an error of the data side is about.
fn data_key(error: &DataError) -> &'static str {
    match error {
        DataError::BadValue { key, .. }
        | DataError::NoSuchFile { key, .. }
        | DataError::NoMatch { key, .. }
        | DataError::IsFolder { key, .. } => key,
        DataError::UnknownDataset { .. } => "data.dataset.url",
        DataError::UnknownCollator { .. } => "data.collator.type",
        DataError::Tokenizer { .. } | DataError::NoEndOfText { .. } => "data.tokenizer.path",
        _ => "data.path",
    }
}

/// Nothing can be trained without these groups, and no option of them would be a sensible default.
fn require(
    required: &[&str],
    composition: &Composition,
    groups: &Groups,
) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    for group in required
        .iter()
        .filter(|group| composition.get(group).is_none())
    {
        let options = groups.iter().find(|(name, _)| name == group);
        let options = options.map_or(&[][..], |(_, options)| options);
        problems.push(
            Diagnostic::new(format!("no {group} is chosen")).note(format!(
                "choose one with {group}=OPTION: {}",
                options.join(", ")
            )),
        );
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn build_model(
    composition: &Composition,
    plugins: &Plugins,
    hf_config: Option<&Value>,
) -> Result<Arc<dyn Model>, Diagnostics> {
    let section = composition.section("model");
    let entry = plugins.models.choose(&section)?;
    let section = section.describe(plugins.models.subject(entry));
    (entry.build.from_config)(&section, hf_config)
}

fn build_trainer(
    composition: &Composition,
    plugins: &Plugins,
) -> Result<Box<dyn Trainer>, Diagnostics> {
    let section = composition.section("trainer");
    let entry = plugins.trainers.choose(&section)?;
    let kwargs = section
        .section("kwargs")
        .describe(plugins.trainers.subject(entry));
    (entry.build)(&kwargs)
}

fn build_optimizer(
    composition: &Composition,
    plugins: &Plugins,
) -> Result<MakeOptimizer, Diagnostics> {
    let section = composition.section("trainer.optimizer");
    let entry = plugins.optimizers.choose(&section)?;
    let kwargs = section
        .section("kwargs")
        .describe(plugins.optimizers.subject(entry));
    (entry.build)(&kwargs)
}

/// Problems from several readings of one tree, which may find the same one twice.
#[derive(Default)]
struct Problems {
    found: Diagnostics,
    seen: HashSet<String>,
}

impl Problems {
    fn add(&mut self, problem: Diagnostic) {
        if self.seen.insert(problem.to_string()) {
            self.found.push(problem);
        }
    }

    fn take<T>(&mut self, result: Result<T, Diagnostics>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problems) => {
                problems
                    .iter()
                    .for_each(|problem| self.add(problem.clone()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Args;
    use crate::configs;

    fn read(overrides: &[&str]) -> Result<Setup, String> {
        let composer = configs::composer(&Args::default(), "default").expect("folders");
        let composition = composer.compose(overrides).map_err(|e| e.to_string())?;
        let invocation = Invocation {
            groups: composer.groups(),
            plugins: Plugins::built_in(),
            arguments: Vec::new(),
            composition,
        };
        Setup::read(&invocation).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_of_every_group_type_checks() {
        let composer = configs::composer(&Args::default(), "default").expect("folders");
        let groups = composer.groups();
        assert!(groups.len() >= 8, "{groups:?}");
        for (group, options) in &groups {
            for option in options {
                let choice = format!("{group}={option}");
                // What else a run needs.
                let mut overrides: Vec<_> = ["model=qwen2", "trainer=lm"]
                    .into_iter()
                    .filter(|other| !other.starts_with(&format!("{group}=")))
                    .collect();
                overrides.push(&choice);
                if choice == "data=text" {
                    overrides.push("data.path=given");
                }
                if let Err(problems) = read(&overrides) {
                    panic!("{choice}: {problems}");
                }
            }
        }
    }

    #[test]
    fn all_problems_are_found_at_once() {
        let problems = read(&[
            "model=qwen2",
            "trainer=lm",
            "+seeds=1",
            "seed=many",
            "model.num_attention_heads=3",
            "trainer.micro_batch_size=0",
            "trainer.optimizer.kwargs.weight_decay=-1",
            "+trainer.kwargs.z_los=1",
        ])
        .err()
        .expect("problems");
        for key in [
            "seeds",
            "`seed`",
            "num_attention_heads",
            "micro_batch_size",
            "weight_decay",
            "z_los",
        ] {
            assert!(problems.contains(key), "{key} in:\n{problems}");
        }
        assert_eq!(problems.matches("error: ").count(), 6, "{problems}");
    }
}
