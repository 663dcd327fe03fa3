//! A trained model on disk: a run, a checkpoint of one, a folder in Hugging Face layout, a GGUF file, or an adapter in peft's
//! layout with the model it is on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use tt_adapters::{BaseDType, Lora, LoraConfig, Targets};
use tt_checkpoint::{SavedAdapter, Weights};
use tt_data::{Tokenizer, TokenizerOrigin};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::Device;
use tt_train::{
    Adapted, Base, BaseOrigin, TrainState, draw_base, load_adapter, load_base, load_body,
    load_params,
};

use crate::plugins::Plugins;
use crate::setup::adapter::peft;
use crate::setup::hub::{self, Need};
use crate::setup::pretrained::TOKENIZER;

const CONFIG: &str = "config.json";
/// Where a checkpoint of an adapter has it: beside `adapter_config.json` other programs would take it for a model's.
const CONFIG_OF_BASE: &str = "trainer_state/config.json";

/// Reads a whole model's parameters.
type Load = fn(&dyn Model, &Weights, Device) -> tt_train::Result<ParamTree>;

/// A model and its parameters, read from a folder.
pub(crate) struct Stored {
    pub(crate) folder: PathBuf,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) params: ParamTree,
    /// The adapter among the parameters.
    pub(crate) adapter: Option<Arc<Lora>>,
    /// The folder of the base model, if there is an adapter and its base is from a folder.
    base_folder: Option<PathBuf>,
    /// What that base's weights are read from.
    pub(crate) base_weights: Option<PathBuf>,
    /// The tokenizer within the file of the weights, if they are in a file that may have one. Error: a sentence why it is none.
    tokenizer_within: Result<Option<TokenizerOrigin>, String>,
}

impl Stored {
    /// Reads what `checkpoint` names, here or on the Hub. The base of an adapter is where the adapter says, unless `base`
    /// names another.
    pub(crate) fn open(
        checkpoint: &str,
        base: Option<&str>,
        plugins: &Plugins,
        device: Device,
    ) -> anyhow::Result<Self> {
        Self::open_with(load_params, checkpoint, base, plugins, device)
    }

    /// The same for its hidden states: a whole model's files may lack the head.
    pub(crate) fn open_body(
        checkpoint: &str,
        base: Option<&str>,
        plugins: &Plugins,
        device: Device,
    ) -> anyhow::Result<Self> {
        Self::open_with(load_body, checkpoint, base, plugins, device)
    }

    fn open_with(
        load: Load,
        checkpoint: &str,
        base: Option<&str>,
        plugins: &Plugins,
        device: Device,
    ) -> anyhow::Result<Self> {
        let folder = hub::local(checkpoint, Need::Weights)?;
        let Some(saved) = SavedAdapter::open(&folder)? else {
            if let Some(base) = base {
                bail!(
                    "{} is a whole model, so it has no base such as {base}",
                    folder.display()
                );
            }
            return Self::whole(load, folder, plugins, device);
        };
        let remembered = TrainState::read_in(&folder)?.and_then(|state| state.base);
        let origin = base_origin(&folder, &saved, base, remembered.as_ref())?;
        let dtype = remembered
            .as_ref()
            .map_or(BaseDType::F32, |base| base.dtype);
        let base_weights = match &origin {
            BaseOrigin::Pretrained(name) => Some(
                hub::local(name, Need::Weights)
                    .with_context(|| format!("the base model of {}", folder.display()))?,
            ),
            BaseOrigin::Seed(_) => None,
        };
        let base_folder = base_weights.as_deref().map(parent_of_weights);
        // The adapter of a run has the model's config beside it; one of peft's is described by its base alone.
        let described = match &base_folder {
            Some(base) if !config_of(&folder).exists() => base,
            _ => &folder,
        };
        let model = read_model(described, plugins)?;
        let params = match (&origin, base_weights.as_deref()) {
            (BaseOrigin::Seed(seed), _) => {
                draw_base(&*model, *seed, dtype, device, &ParamSpec::whole)?
            }
            (BaseOrigin::Pretrained(name), path) => {
                let path = path.unwrap_or(Path::new(name));
                let weights = Weights::open(path)
                    .with_context(|| format!("the base model of {}", folder.display()))?;
                load_base(&*model, &weights, dtype, device, &ParamSpec::whole)?
            }
        };
        let lora = Lora::from_peft(&peft(&saved), neutral(dtype), &model.params())
            .with_context(|| folder.display().to_string())?;
        let adapted = Adapted::new(Arc::new(lora), &params, origin)?;
        if let Some(remembered) = &remembered {
            adapted.base.check(remembered)?;
        }
        Ok(Self {
            params: load_adapter(
                &adapted.lora,
                &params,
                &saved.weights,
                device,
                &ParamSpec::whole,
            )?,
            model,
            adapter: Some(adapted.lora),
            base_folder,
            base_weights,
            folder,
            tokenizer_within: Ok(None),
        })
    }

    /// A whole model: a folder, or a file of weights, beside which or in which it is described.
    fn whole(load: Load, path: PathBuf, plugins: &Plugins, device: Device) -> anyhow::Result<Self> {
        let folder = parent_of_weights(&path);
        let (model, weights) = if path.is_file() {
            let weights = Weights::open(&path)?;
            let model = match weights.config() {
                Some(config) => model_of(config, &path, plugins)?,
                None => read_model(&folder, plugins)?,
            };
            (model, weights)
        } else {
            let model = read_model(&folder, plugins)?;
            (model, Weights::open(&folder)?)
        };
        let within = weights.tokenizer_files();
        let of_file = |files| TokenizerOrigin::Within {
            file: path.clone(),
            files,
        };
        let tokenizer_within = within.map(|files| files.map(of_file));
        Ok(Self {
            params: load(&*model, &weights, device)?,
            model,
            adapter: None,
            base_folder: None,
            base_weights: None,
            tokenizer_within,
            folder,
        })
    }

    /// A file that lies beside the weights, or beside those of the base.
    pub(crate) fn file(&self, name: &str) -> Option<PathBuf> {
        let folders = [Some(&self.folder), self.base_folder.as_ref()];
        let files = folders.into_iter().flatten().map(|folder| match name {
            CONFIG => config_of(folder),
            name => folder.join(name),
        });
        files.into_iter().find(|file| file.is_file())
    }

    /// The tokenizer that the model was trained with: the one beside the weights, else the one within their file.
    pub(crate) fn tokenizer_origin(&self) -> TokenizerOrigin {
        let has_own = self.folder.join(TOKENIZER).exists();
        match (&self.base_folder, &self.tokenizer_within) {
            (_, Ok(Some(within))) if !has_own => within.clone(),
            (Some(base), _) if !has_own => TokenizerOrigin::Path(base.clone()),
            _ => TokenizerOrigin::Path(self.folder.clone()),
        }
    }

    /// Reads it.
    pub(crate) fn tokenizer(&self) -> anyhow::Result<Tokenizer> {
        let tokenizer = Tokenizer::load_from(&self.tokenizer_origin(), None);
        tokenizer.map_err(|error| match &self.tokenizer_within {
            Err(why) => anyhow!("{why}, and {error}"),
            Ok(_) => error.into(),
        })
    }
}

fn base_origin(
    folder: &Path,
    saved: &SavedAdapter,
    given: Option<&str>,
    remembered: Option<&Base>,
) -> anyhow::Result<BaseOrigin> {
    if let Some(given) = given {
        if hub::named(given).is_some() {
            return Ok(BaseOrigin::Pretrained(given.to_owned()));
        }
        let given = hub::local(given, Need::Weights)?;
        return Ok(BaseOrigin::Pretrained(given.display().to_string()));
    }
    if let Some(remembered) = remembered {
        return Ok(remembered.origin.clone());
    }
    match saved.config["base_model_name_or_path"].as_str() {
        Some(path) => Ok(BaseOrigin::Pretrained(path.to_owned())),
        None => bail!(
            "{} names no base model; say where it is with base=DIR",
            folder.display()
        ),
    }
}

/// The folder of weights that are a file.
fn parent_of_weights(path: &Path) -> PathBuf {
    if path.is_file() {
        path.parent().map(Path::to_owned).unwrap_or_default()
    } else {
        path.to_owned()
    }
}

/// Options that the saved adapter overrides, and no training.
fn neutral(base_dtype: BaseDType) -> LoraConfig {
    LoraConfig {
        target_modules: Targets(Vec::new()),
        r: 1,
        lora_alpha: 1.0,
        use_rslora: false,
        lora_dropout: 0.0,
        bias: Default::default(),
        adapter_url: None,
        base_dtype,
    }
}

fn config_of(folder: &Path) -> PathBuf {
    let of_base = folder.join(CONFIG_OF_BASE);
    if of_base.exists() {
        of_base
    } else {
        folder.join(CONFIG)
    }
}

/// The model that `config.json` describes.
fn read_model(folder: &Path, plugins: &Plugins) -> anyhow::Result<Arc<dyn Model>> {
    let path = config_of(folder);
    let config: Value = tt_disk::read_json(&path)?;
    model_of(&config, &path, plugins)
}

/// The model that the `config.json` of `path` says.
fn model_of(config: &Value, path: &Path, plugins: &Plugins) -> anyhow::Result<Arc<dyn Model>> {
    let entry = plugins.model_of_checkpoint(config)?;
    (entry.build.from_hf)(config).map_err(|error| match error {
        // It would name the file once more.
        tt_models::Error::HfConfig(why) => anyhow!("{}: {why}", path.display()),
        error => anyhow::Error::from(error).context(path.display().to_string()),
    })
}
