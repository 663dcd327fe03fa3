//! From a composed configuration to what a run is made of, in one step that finds every problem.
//!
//! After it there are no strings left to look up: names have become models, trainers and optimizers, and the rest is
//! typed. Nothing is trained, written or locked here.

mod adapter;
pub(crate) mod hub;
mod hub_configs;
mod hub_data;
mod hub_stream;
pub(crate) mod job;
mod optimization;
pub(crate) mod parameters;
pub(crate) mod pretrained;
pub(crate) mod sharding;
pub(crate) mod stored;
pub(crate) mod tokens;
mod utilization;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tt_adapters::BaseDType;
use tt_checkpoint::Checkpoint;
use tt_collators::{BatchSpec, BuildCollator, Pipeline, PipelineOptions};
use tt_config::{Composition, Diagnostic, Diagnostics, Table};
use tt_data::{DataConfig, DataError, OpenSource, Tokenizer, TokenizerOrigin};
use tt_metrics::wandb::{self, Environment, Wandb, WandbConfig};
use tt_metrics::{Console, LoggingConfig, Sink};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree, Recompute};
use tt_remat::{Remat, RematConfig};
use tt_sharding::Layout;
use tt_tensor::{Device, MetaDevice, Seed, Shard};
use tt_train::{Initial, Trainer, TrainerConfig};

use crate::config::AppConfig;
use crate::configs::Groups;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::plugins::Plugins;
use crate::publish::{self, push};
use adapter::Adapter;
use hub::Need;
use optimization::PlannedOptimizers;
use parameters::Sources;
use pretrained::{Pretrained, TOKENIZER};

/// A run, ready to be started.
pub(crate) struct Setup {
    pub(crate) config: AppConfig,
    pub(crate) model: Arc<dyn Model>,
    /// The modules that `model.remat` names, if it names any.
    pub(crate) recompute: Option<Arc<dyn Recompute>>,
    pub(crate) pretrained: Option<Pretrained>,
    pub(crate) adapter: Option<Adapter>,
    /// How the ranks share the model.
    pub(crate) layout: Layout,
    pub(crate) trainer_config: TrainerConfig,
    pub(crate) sources: Table<OpenSource>,
    pub(crate) collators: Table<BuildCollator>,
    /// By the names that `logging.sinks` gives them.
    pub(crate) sinks: NamedSinks,
    pub(crate) trainer: Box<dyn Trainer>,
    pub(crate) optimizers: PlannedOptimizers,
}

impl Setup {
    /// Reads the whole configuration. Everything that is wrong with it is in one error.
    pub(crate) fn read(invocation: &Invocation) -> Result<Self, Diagnostics> {
        Self::read_for(invocation, Need::Weights)
    }

    /// The same for what loads no weights, so that those on the Hub may stay there.
    pub(crate) fn read_to_plan(invocation: &Invocation) -> Result<Self, Diagnostics> {
        Self::read_for(invocation, Need::Description)
    }

    fn read_for(invocation: &Invocation, need: Need) -> Result<Self, Diagnostics> {
        let Invocation {
            composition,
            plugins,
            composer,
            ..
        } = invocation;
        let mut problems = Problems::default();
        let config = problems.take(composition.extract::<AppConfig>(""));
        if config.is_some() {
            problems.take(require(
                &["model", "trainer"],
                composition,
                &composer.groups(),
            ));
        }
        problems.take(check_data(composition, plugins));
        let logging = config.as_ref().map(|config| &config.logging);
        let sinks = logging.and_then(|it| problems.take(build_sinks(composition, plugins, it)));
        // Without a group there is nothing more to say about it.
        let parts = if is_given("model", composition) && is_given("trainer", composition) {
            Parts::read(composition, plugins, need, &mut problems)
        } else {
            None
        };
        let mut config = config.filter(|_| problems.found.is_empty());
        if let Some(found) = &mut config
            && problems
                .take(fetch_tokenizer(&mut found.data, composition))
                .is_none()
        {
            config = None;
        }
        let trainer_config = config.as_mut().and_then(|config| config.trainer.take());
        let layout = match (&config, &trainer_config, &parts) {
            (Some(config), Some(_), Some(parts)) => {
                problems.take(config.device.check(composition));
                problems.take(sharding::check(config, composition, need == Need::Weights));
                let (adapter, optimizers) = (parts.adapter.as_ref(), &parts.optimizers);
                let layout =
                    sharding::layout(config, composition, &*parts.model, adapter, optimizers);
                problems.take(layout)
            }
            _ => None,
        };
        match (config, trainer_config, parts, layout) {
            (Some(config), Some(trainer_config), Some(parts), Some(layout))
                if problems.found.is_empty() =>
            {
                Ok(Self {
                    config,
                    trainer_config: sharding::evenly(trainer_config, &layout).with_length(),
                    sources: plugins.sources.clone(),
                    collators: plugins.collators.clone(),
                    sinks: sinks.unwrap_or_default(),
                    model: parts.model,
                    recompute: parts.recompute,
                    pretrained: parts.pretrained,
                    adapter: parts.adapter,
                    trainer: parts.trainer,
                    optimizers: parts.optimizers,
                    layout,
                })
            }
            _ => Err(problems.found),
        }
    }

    /// Checks what needs no data to be seen: that the trainer's keys fit together, the rows the model, and that there are
    /// files where the data is said to be.
    pub(crate) fn check(&self, composition: &Composition) -> Result<(), Diagnostics> {
        let files = tt_data::check_files(&self.config.data)
            .map_err(|error| data_problem(composition, &error));
        let mut problems = Problems::default();
        problems.take(self.check_trainer(composition));
        problems.take(self.check_length(composition));
        problems.take(self.check_hub(composition));
        problems.take(files);
        problems.found.into_result(())
    }

    /// [`Setup::check`], and that what is made of the rest fits together: batches, parameters, optimizers and schedules.
    /// Takes no memory and opens no data.
    pub(crate) fn check_whole(self, composition: &Composition) -> Result<(), Failure> {
        self.check(composition)?;
        self.batch_spec()
            .map_err(|error| data_problem(composition, &error))?;
        let params = self.unallocated_params(MetaDevice::new(), &ParamSpec::whole);
        let params = params.map_err(Failure::run)?;
        // The length changes rates alone, and may only be known with the data.
        let run_length = Some(self.trainer_config.max_steps.unwrap_or(u64::MAX));
        self.optimizers.build(&params, run_length, composition)?;
        Ok(())
    }

    /// The parameters as they will be, of each the part that `shard` says, without memory. Weights to start from would have the same shapes, so they are not
    /// read.
    pub(crate) fn unallocated_params(
        &self,
        meta: MetaDevice,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> tt_train::Result<ParamTree> {
        let device = Device::Meta(meta);
        match &self.adapter {
            Some(adapter) => adapter.on_new_weights(&*self.model, device, shard),
            None => {
                let (specs, seed) = (self.model.params(), Seed::new(0));
                Ok(ParamTree::init_sharded(&specs, seed, device, shard)?)
            }
        }
    }

    /// What the trainer asks for of the model before the first step, without memory; `ranks` share it, if several do.
    pub(crate) fn unallocated_initial(
        &self,
        meta: MetaDevice,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> tt_train::Result<Option<ParamTree>> {
        let adapter = self.adapter.as_ref();
        let of_adapter = adapter.map(|it| it.lora.config());
        let Some(dtype) = self.trainer.initial_model(of_adapter)? else {
            return Ok(None);
        };
        let (model, device) = (&*self.model, Device::Meta(meta));
        let params = match adapter {
            Some(adapter) => adapter.on_new_weights(model, device, shard)?,
            None => tt_train::draw_base(model, 0, dtype, device, shard)?,
        };
        Ok(Some(params))
    }

    /// Opens the data, and checks that data, model, trainer and the checkpoint to go on from fit together.
    pub(crate) fn open_data(
        &self,
        composition: &Composition,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Pipeline, Diagnostics> {
        self.check(composition)?;
        // One trained afresh would differ as soon as the data does, and the embedding would not be of its tokens.
        let trained_with = checkpoint
            .map(|checkpoint| checkpoint.dir().join(TOKENIZER))
            .filter(|path| path.exists());
        let options = PipelineOptions {
            seed: self.config.seed,
            micro_batch_size: self.trainer_config.micro_batch_size,
            num_epochs: self.trainer_config.num_epochs,
            start_batches: start_batches(&self.config.data, Some(&self.trainer_config)),
            sources: self.sources.clone(),
            collators: self.collators.clone(),
            vocab_size: Some(self.model.vocab_size()),
            tokenizer: trained_with
                .clone()
                .map(TokenizerOrigin::Path)
                .or_else(|| self.base_tokenizer()),
            ..PipelineOptions::default()
        };
        let data = open_pipeline(composition, &self.config.data, &options)?;
        self.check_vocabulary(composition, data.tokenizer())?;
        if let Some(path) = trained_with {
            self.check_tokenizer(composition, data.tokenizer(), &path)?;
        }
        Ok(data)
    }

    /// What the batches will have, as far as it can be said before the data is opened.
    pub(crate) fn batch_spec(&self) -> Result<BatchSpec, DataError> {
        let options = PipelineOptions {
            collators: self.collators.clone(),
            tokenizer: self.base_tokenizer(),
            ..PipelineOptions::default()
        };
        BatchSpec::planned(&self.config.data, &options)
    }

    /// That of the weights to start from; a configured one goes before it.
    fn base_tokenizer(&self) -> Option<TokenizerOrigin> {
        let is_configured = self.config.data.tokenizer.path.is_some();
        let pretrained = self.pretrained.as_ref().filter(|_| !is_configured)?;
        pretrained.tokenizer().ok()
    }

    /// A configured tokenizer must be the one at `path`, which the checkpoint was trained with.
    fn check_tokenizer(
        &self,
        composition: &Composition,
        tokenizer: &Tokenizer,
        path: &Path,
    ) -> Result<(), Diagnostics> {
        let key = "data.tokenizer.path";
        let config = &self.config.data.tokenizer;
        if config.path.is_none() {
            return Ok(());
        }
        let refuse = |why: String| Diagnostics::from(problem(composition, key, why));
        let trained_with = Tokenizer::load(path, config.eos_token.as_deref())
            .map_err(|error| refuse(error.to_string()))?;
        if tokenizer.is_same(&trained_with) {
            return Ok(());
        }
        Err(refuse(format!(
            "`{key}`: not the tokenizer that the checkpoint was trained with, {}; null takes that one",
            path.display()
        )))
    }

    fn check_trainer(&self, composition: &Composition) -> Result<(), Diagnostics> {
        let adapter = self.adapter.as_ref().map(|it| it.lora.config());
        let checked = self.trainer_config.check();
        let checked = checked.and_then(|()| self.trainer.initial_model(adapter).map(drop));
        checked.map_err(|error| located(composition, error))
    }

    fn check_hub(&self, composition: &Composition) -> Result<(), Diagnostics> {
        let Some(text) = &self.trainer_config.checkpoint.hub else {
            return Ok(());
        };
        let key = push::KEY;
        publish::destination(text)
            .map(drop)
            .map_err(|error| problem(composition, key, format!("`{key}`: {error:#}")).into())
    }

    /// Comes before the data: a validation with rows of that length is made when it is opened.
    fn check_length(&self, composition: &Composition) -> Result<(), Diagnostics> {
        let checked = tt_train::check_length(self.config.data.sequence_length, &*self.model);
        checked.map_err(|error| located(composition, error))
    }

    fn check_vocabulary(
        &self,
        composition: &Composition,
        tokenizer: &Tokenizer,
    ) -> Result<(), Diagnostics> {
        let checked = tt_train::check_vocabulary(tokenizer.vocab_size(), &*self.model);
        // The size is the checkpoint's where it says one, whatever the configuration says.
        let described = self.pretrained.as_ref().filter(|it| it.config().is_some());
        checked.map_err(|error| match (error, described) {
            (tt_train::Error::Config { why, .. }, Some(pretrained)) => {
                let (key, path) = (pretrained::KEY, pretrained.config_path());
                let why = format!("{}: vocab_size {why}", path.display());
                located(composition, tt_train::Error::Config { key, why })
            }
            (error, _) => located(composition, error),
        })
    }
}

/// What cannot be trained, at its key.
pub(crate) fn located(composition: &Composition, error: tt_train::Error) -> Diagnostics {
    let message = error.to_string();
    match error {
        tt_train::Error::Config { key, .. } => problem(composition, key, message).into(),
        _ => Diagnostic::new(message).into(),
    }
}

/// A problem at the place where `key` was given, or at the nearest part around it.
pub(crate) fn problem(composition: &Composition, key: &str, message: String) -> Diagnostic {
    match composition.get(key) {
        Some(node) => Diagnostic::new(message).at(&node.origin),
        None => composition.section(key).error(message),
    }
}

/// The batches of `data.start_step` steps; a step is one batch where no trainer says how many.
pub(crate) fn start_batches(data: &DataConfig, trainer: Option<&TrainerConfig>) -> u64 {
    let of_each = trainer.map_or(1, |it| it.global_batch_size / it.micro_batch_size.max(1));
    data.start_step.unwrap_or(0).saturating_mul(of_each as u64)
}

/// Opens data, wherever it is.
pub(crate) fn open_pipeline(
    composition: &Composition,
    config: &DataConfig,
    options: &PipelineOptions,
) -> Result<Pipeline, Diagnostics> {
    const KEY: &str = "data.dataset.url";
    let local = hub_data::local(config, &options.sources)
        .map_err(|error| problem(composition, KEY, format!("{error:#}")))?;
    Pipeline::open(&local, options).map_err(|error| data_problem(composition, &error))
}

/// What is wrong with the data, at the key that it is about.
pub(crate) fn data_problem(composition: &Composition, error: &DataError) -> Diagnostics {
    problem(composition, data_key(error), error.to_string()).into()
}

/// Which key an error of the data side is about.
fn data_key(error: &DataError) -> &'static str {
    match error {
        DataError::BadValue { key, .. }
        | DataError::NoSuchFile { key, .. }
        | DataError::NoMatch { key, .. }
        | DataError::IsFolder { key, .. } => key,
        DataError::UnknownDataset { .. } => "data.dataset.url",
        DataError::UnknownCollator { .. }
        | DataError::BadField { .. }
        | DataError::NoTokens { .. }
        | DataError::NothingToPredict { .. } => "data.collator.type",
        DataError::Other(_) => "data.dataset.url",
        DataError::Tokenizer { .. } | DataError::NoEndOfText { .. } => "data.tokenizer.path",
        _ => "data.path",
    }
}

fn is_given(group: &str, composition: &Composition) -> bool {
    composition.get(group).is_some_and(|node| !node.is_null())
}

/// Nothing can be trained without these groups, and no option of them would be a sensible default.
fn require(
    required: &[&str],
    composition: &Composition,
    groups: &Groups,
) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    for group in required {
        if is_given(group, composition) {
            continue;
        }
        let options = groups.iter().find(|(name, _)| name.as_str() == *group);
        let options = options.map_or(&[][..], |(_, options)| options);
        // What others begin with is nothing to choose.
        let options: Vec<_> = options.iter().filter(|it| *it != "base").cloned().collect();
        problems.push(
            Diagnostic::new(format!("no {group} is chosen")).note(format!(
                "choose one with {group}=OPTION: {}",
                options.join(", ")
            )),
        );
    }
    problems.into_result(())
}

/// Replaces a tokenizer on the Hub by its files here.
pub(crate) fn fetch_tokenizer(
    config: &mut DataConfig,
    composition: &Composition,
) -> Result<(), Diagnostics> {
    const KEY: &str = "data.tokenizer.path";
    let path = &mut config.tokenizer.path;
    if let Some(text) = path.as_deref().filter(|text| hub::named(text).is_some()) {
        let local = hub::local(text, Need::Tokenizer)
            .map_err(|error| problem(composition, KEY, format!("`{KEY}`: {error:#}")))?;
        *path = Some(local.display().to_string());
    }
    Ok(())
}

/// What the groups `model` and `trainer` name.
struct Parts {
    model: Arc<dyn Model>,
    recompute: Option<Arc<dyn Recompute>>,
    pretrained: Option<Pretrained>,
    adapter: Option<Adapter>,
    trainer: Box<dyn Trainer>,
    optimizers: PlannedOptimizers,
}

impl Parts {
    fn read(
        composition: &Composition,
        plugins: &Plugins,
        need: Need,
        problems: &mut Problems,
    ) -> Option<Self> {
        let trainer = problems.take(build_trainer(composition, plugins));
        let optimizers = problems.take(PlannedOptimizers::read(composition, plugins));
        let pretrained = problems.take(Pretrained::open(composition, need))?;
        let hf_config = pretrained.as_ref().and_then(Pretrained::config);
        let model = problems.take(build_model(composition, plugins, hf_config))?;
        if let Some(pretrained) = &pretrained {
            problems.take(pretrained.check(&*model, composition));
            problems.take(pretrained.check_tokenizer(composition));
        }
        let recompute = problems.take(build_remat(composition, &*model))?;
        let adapter = problems.take(Adapter::read(composition, &*model))?;
        Some(Self {
            model,
            recompute,
            pretrained,
            adapter,
            trainer: trainer?,
            optimizers: optimizers?,
        })
    }
}

/// The model as it was before the first step of the run that `composition` is of, whole, for a trainer that compares with
/// it: matrices held as `dtype`, or as the base of the run's adapter is.
pub(crate) fn before_first_step(
    composition: &Composition,
    plugins: &Plugins,
    seed: u64,
    dtype: BaseDType,
    device: Device,
) -> Result<Initial, Failure> {
    let mut problems = Problems::default();
    let Some(parts) = Parts::read(composition, plugins, Need::Weights, &mut problems) else {
        return Err(problems.found.into());
    };
    let sources = Sources {
        pretrained: parts.pretrained.as_ref(),
        checkpoint: None,
        seed,
    };
    let (adapter, model) = (parts.adapter.as_ref(), &*parts.model);
    sources.initial(adapter, model, dtype, device, &ParamSpec::whole, |params| {
        Ok((params, None))
    })
}

/// Checks the options of the data set and of the collator.
pub(crate) fn check_data(composition: &Composition, plugins: &Plugins) -> Result<(), Diagnostics> {
    let mut problems = Problems::default();
    for result in [
        check_kwargs(composition, "data.dataset", "url", &plugins.sources),
        check_kwargs(composition, "data.collator", "type", &plugins.collators),
    ] {
        problems.take(result);
    }
    problems.found.into_result(())
}

/// Checks the options of what `group.name_key` chooses from `table`. It is built later, with the data.
fn check_kwargs<B: Clone>(
    composition: &Composition,
    group: &str,
    name_key: &str,
    table: &Table<B>,
) -> Result<(), Diagnostics> {
    let chosen = composition.section(group).section(name_key);
    let Some(node) = chosen.node() else {
        return Ok(()); // the default, which takes its options as they are
    };
    let name = chosen.text()?;
    let name = if name_key == "url" {
        hub_data::source(&name, table)
    } else {
        &name
    };
    let entry = table
        .get(name)
        .map_err(|problem| problem.at(&node.origin))?;
    let kwargs = composition.section(group).section("kwargs");
    let kwargs = kwargs.describe(table.subject(entry));
    kwargs.checked(&(entry.schema)()).map(drop)
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

fn build_remat(
    composition: &Composition,
    model: &dyn Model,
) -> Result<Option<Arc<dyn Recompute>>, Diagnostics> {
    let section = composition.section("model.remat");
    let config: RematConfig = section.extract()?;
    if config.activation_checkpoint_layers.is_empty() {
        return Ok(None);
    }
    let layers = section.section("activation_checkpoint_layers");
    let refuse = |why: String| Diagnostics::from(layers.error(why));
    let modules = tt_models::modules(model).map_err(|error| refuse(error.to_string()))?;
    let remat = Remat::new(&config, &modules, &model.blocks());
    let remat = remat.map_err(|error| refuse(error.to_string()))?;
    Ok(Some(Arc::new(remat)))
}

pub(crate) fn build_trainer(
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

/// What gets the metrics, each under the name that the configuration gives it.
type NamedSinks = Vec<(String, Box<dyn Sink>)>;

/// The console, unless another sink is called so, those of `logging.sinks`, and W&B where the user is known to it and the
/// configuration has no word on it. Nothing is opened yet.
fn build_sinks(
    composition: &Composition,
    plugins: &Plugins,
    config: &LoggingConfig,
) -> Result<NamedSinks, Diagnostics> {
    const CONSOLE: &str = "console";
    const WANDB: &str = "wandb";
    let mut sinks = NamedSinks::new();
    if !config.sinks.contains_key(CONSOLE) {
        let console = Console::new(config.progress);
        sinks.push((CONSOLE.to_owned(), Box::new(console)));
    }
    for name in config.sinks.keys() {
        let section = composition
            .section("logging")
            .section("sinks")
            .section(name);
        let entry = plugins.sinks.choose(&section)?;
        let kwargs = section.section("kwargs");
        let kwargs = kwargs.describe(plugins.sinks.subject(entry));
        sinks.push((name.clone(), (entry.build)(&kwargs)?));
    }
    let mut types = config.sinks.values().map(|sink| sink.r#type.as_str());
    let has_word = config.sinks.contains_key(WANDB) || types.any(|it| it == "wandb.Wandb");
    if !has_word && wandb::is_expected(&Environment::of_process()) {
        let wandb = Wandb::new(WandbConfig::default()).by_itself();
        sinks.push((WANDB.to_owned(), Box::new(wandb)));
    }
    Ok(sinks)
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
mod tests;
