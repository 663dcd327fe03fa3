//! A trained model on disk: a run, a checkpoint of one, a folder in Hugging Face layout, or an adapter in peft's with the
//! model it is on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::Value;
use tt_adapters::{BaseDType, Lora, LoraConfig, Targets};
use tt_checkpoint::{SavedAdapter, Weights};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::Device;
use tt_train::{
    Adapted, Base, BaseOrigin, TrainState, draw_base, load_adapter, load_base, load_params,
};

use crate::plugins::Plugins;
use crate::setup::adapter::peft;
use crate::setup::hub::{self, Need};
use crate::setup::pretrained::TOKENIZER;

const CONFIG: &str = "config.json";
/// Where a checkpoint of an adapter has it: beside `adapter_config.json` other programs would take it for a model's.
const CONFIG_OF_BASE: &str = "trainer_state/config.json";

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
        let folder = hub::local(checkpoint, Need::Weights)?;
        let Some(saved) = SavedAdapter::open(&folder)? else {
            if let Some(base) = base {
                bail!(
                    "{} is a whole model, so it has no base such as {base}",
                    folder.display()
                );
            }
            let model = read_model(&folder, plugins)?;
            let params = load_params(&*model, &Weights::open(&folder)?, device)?;
            return Ok(Self {
                folder,
                model,
                params,
                adapter: None,
                base_folder: None,
                base_weights: None,
            });
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

    /// The folder with the tokenizer.
    pub(crate) fn tokenizer_folder(&self) -> &Path {
        match (&self.base_folder, self.folder.join(TOKENIZER).exists()) {
            (Some(base), false) => base,
            _ => &self.folder,
        }
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
    let entry = plugins.model_of_checkpoint(&config)?;
    (entry.build.from_hf)(&config).with_context(|| path.display().to_string())
}
