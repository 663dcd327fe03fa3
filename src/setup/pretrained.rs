//! `model.pretrained_url`: weights that a run starts from, with the `config.json` and the tokenizer beside them; here, or on
//! the Hub. A GGUF file describes its model itself.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tt_adapters::BaseDType;
use tt_checkpoint::Weights;
use tt_config::{Composition, Diagnostics};
use tt_data::{Tokenizer, TokenizerOrigin};
use tt_hub::Reference;
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Device, Seed, Shard};
use tt_train::TokenIds;

use crate::setup::hub::{self, Need};

pub(crate) const KEY: &str = "model.pretrained_url";

/// The tokenizer in a folder of Hugging Face's layout.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "config.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// Weights on disk, opened but not yet read, and what describes them if it is there.
pub(crate) struct Pretrained {
    /// None: they are on the Hub, and nobody needs them yet.
    weights: Option<Weights>,
    path: PathBuf,
    /// As they are named on the Hub.
    remote: Option<Reference>,
    folder: PathBuf,
    config: Option<Value>,
    config_path: PathBuf,
}

impl Pretrained {
    /// Opens what the configuration names, if it names any. Errors: nothing there, or files that are not whole.
    pub(crate) fn open(composition: &Composition, need: Need) -> Result<Option<Self>, Diagnostics> {
        let section = composition.section(KEY);
        if section.node().is_none_or(|node| node.is_null()) {
            return Ok(None);
        }
        let url = section.text()?;
        let refuse = |why: String| Diagnostics::from(section.error(format!("`{KEY}`: {why}")));
        let remote = hub::named(&url).and_then(Result::ok);
        let path = hub::local(&url, need).map_err(|error| refuse(format!("{error:#}")))?;
        let weights = match Weights::open(&path) {
            Ok(weights) => Some(weights),
            Err(_) if remote.is_some() && need != Need::Weights => None,
            Err(error) => return Err(refuse(error.to_string())),
        };
        let folder = if path.is_dir() {
            path.clone()
        } else {
            path.parent().map(Path::to_owned).unwrap_or_default()
        };
        let (config, config_path) = match weights.as_ref().and_then(Weights::config) {
            Some(config) => (Some(config.clone()), path.clone()),
            None => {
                let path = folder.join(CONFIG);
                (read_config(&path).map_err(refuse)?, path)
            }
        };
        Ok(Some(Self {
            weights,
            path,
            remote,
            folder,
            config,
            config_path,
        }))
    }

    pub(crate) fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// The file that says [`Pretrained::config`].
    pub(crate) fn config_path(&self) -> &Path {
        &self.config_path
    }

    /// The tokenizer that the weights were trained with: the one beside them, else the one within their file. Error: a
    /// sentence why there is none.
    pub(crate) fn tokenizer(&self) -> Result<TokenizerOrigin, String> {
        let beside = self.folder.join(TOKENIZER);
        if beside.exists() {
            return Ok(TokenizerOrigin::Path(beside));
        }
        let file = self.path.clone();
        let within = match &self.weights {
            Some(weights) => weights.tokenizer_files(),
            None => Ok(None),
        };
        match within {
            Ok(Some(files)) => Ok(TokenizerOrigin::Within { file, files }),
            _ if Tokenizer::is_in(&self.folder) => Ok(TokenizerOrigin::Path(self.folder.clone())),
            Ok(None) => Err(format!("there is no {}", beside.display())),
            Err(why) => Err(format!("{why}, and there is no {}", beside.display())),
        }
    }

    /// What the files say of tokens and of generating. `tokenizer` is the one that is trained with: of another the ids would
    /// mean something else.
    pub(crate) fn token_ids(&self, tokenizer: &Tokenizer) -> Result<TokenIds, String> {
        let beside = read_config(&self.folder.join(GENERATION_CONFIG))?;
        let generation = match (beside, &self.weights) {
            (Some(beside), _) => beside,
            (None, Some(weights)) => weights.generation_config()?,
            (None, None) => Value::Null,
        };
        let ids = TokenIds::new(self.config.as_ref().unwrap_or(&Value::Null), &generation);
        let own = self.tokenizer().ok();
        let own = own.and_then(|origin| Tokenizer::load_from(&origin, None).ok());
        let is_other = own.is_some_and(|own| !own.has_same_tokens(tokenizer));
        Ok(if is_other { ids.without_ids() } else { ids })
    }

    /// Weights are of use with their own tokenizer alone: one trained on the data would give each token another number.
    pub(crate) fn check_tokenizer(&self, composition: &Composition) -> Result<(), Diagnostics> {
        const PATH: &str = "data.tokenizer.path";
        let given = composition.get(PATH).is_some_and(|node| !node.is_null());
        let Some(why) = self.tokenizer().err().filter(|_| !given) else {
            return Ok(());
        };
        let problem = composition.section(PATH).error(format!(
            "`{PATH}`: the weights of {} come without their tokenizer: {why}",
            self.path.display()
        ));
        Err(problem
            .note("name the tokenizer that they were trained with: its tokenizer.json, or a folder with it")
            .into())
    }

    /// Checks that the weights are the model's, all differences at once.
    pub(crate) fn check(
        &self,
        model: &dyn Model,
        composition: &Composition,
    ) -> Result<(), Diagnostics> {
        let Some(weights) = &self.weights else {
            return Ok(()); // once they are here
        };
        tt_train::check_weights(model, weights).map_err(|error| {
            let section = composition.section(KEY);
            section.error(format!("`{KEY}`: {error}")).into()
        })
    }

    /// A line about weights of parts that the model lacks, if the file has any.
    pub(crate) fn passed_over(&self, model: &dyn Model) -> Option<String> {
        let names = tt_train::passed_over(model, self.weights.as_ref()?);
        let shown = names.first()?;
        let more = match names.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        Some(format!(
            "not read from {}: {shown}{more}, of parts that this model lacks",
            self.path.display()
        ))
    }

    /// A line about a head that is drawn afresh, as the weights are of a model without one.
    pub(crate) fn new_head(&self, model: &dyn Model) -> Option<String> {
        let weights = self.weights.as_ref()?;
        tt_train::lacks_head(model, weights).then(|| {
            format!(
                "{} is of a model without its head: the head is new, drawn from the seed",
                self.path.display()
            )
        })
    }

    fn weights(&self) -> &Weights {
        let weights = self.weights.as_ref();
        weights.expect("what reads weights has asked for them")
    }

    /// Of each parameter the part that `shard` says; of [`Pretrained::new_head`] drawn from `seed`.
    pub(crate) fn load(
        &self,
        model: &dyn Model,
        seed: Seed,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> tt_train::Result<ParamTree> {
        tt_train::load_to_train(model, self.weights(), seed, device, shard)
    }

    /// As [`Pretrained::load`], to be frozen, with a head of its own.
    pub(crate) fn load_base(
        &self,
        model: &dyn Model,
        dtype: BaseDType,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> tt_train::Result<ParamTree> {
        tt_train::load_base(model, self.weights(), dtype, device, shard)
    }

    /// The name under which other programs, started elsewhere, find the same weights: an id as peft takes it, if that is
    /// enough.
    pub(crate) fn name(&self) -> String {
        if let Some(reference) = &self.remote {
            let is_plain =
                reference.path.is_none() && reference.revision == tt_hub::DEFAULT_REVISION;
            return if is_plain {
                reference.repo.id.clone()
            } else {
                reference.to_string()
            };
        }
        let full = self.path.canonicalize().unwrap_or(self.path.clone());
        full.display().to_string()
    }
}

fn read_config(file: &Path) -> Result<Option<Value>, String> {
    if !file.exists() {
        return Ok(None);
    }
    let config = tt_disk::read_json(file);
    config
        .map(Some)
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}
