//! The group `data`: what to train on, and how it becomes batches.
//!
//! Each field's comment is its documentation; the config reference is generated from it.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::DataError;
use crate::files::RemoteFiles;

/// What to train on, and how it becomes batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// The data set.
    pub dataset: DatasetConfig,
    /// The files of a data set that is read from files: a path, or a glob such as `books/**/*.txt`; of rows also a folder.
    pub path: Option<String>,
    /// Files that hold the validation split, as `path`. Without it, `val_fraction` of the
    /// documents of `path` are held out.
    pub val_path: Option<String>,
    /// The part held out for validation: of `text`, documents chosen by a hash of their content, so that equal ones are on
    /// the same side; of rows, one of each `1 / val_fraction`, chosen by its place.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_fraction: f64,
    /// Blocks of `sequence_length` tokens in a validation; fewer if the split has fewer.
    #[schemars(range(min = 1, max = 100_000))]
    pub num_val_blocks: usize,
    /// Tokens in a row of a batch.
    #[schemars(range(min = 2))]
    pub sequence_length: usize,
    /// The tokenizer.
    pub tokenizer: TokenizerConfig,
    /// What becomes of a row whose column to train on is null: `error` ends the run, `skip` leaves it out and counts it.
    /// In JSON, a key that a row does not have is null.
    pub nulls: Nulls,
    /// What turns rows of the data set into rows of a batch.
    pub collator: CollatorConfig,
    /// Whether the tokens of the training data are kept on disk, to be made once: `true` for the user's cache folder, or a
    /// folder. A run makes what is not there before its first step; `tpu-train tokenize` does it ahead of time. Batches are
    /// the same with it and without.
    pub token_cache: TokenCacheConfig,
    /// Steps whose data is passed over at the start: a run begins with the data that step `start_step + 1` of one from the
    /// beginning has, if it does not go on from a checkpoint, which says itself where. Nothing is read to find it; where it
    /// cannot be computed, for packed rows without `token_cache`, it is refused.
    pub start_step: Option<u64>,
    /// Threads that read and tokenise ahead of training; 0 does it in the training loop.
    /// Batches are the same for any number.
    #[schemars(range(max = 256))]
    pub num_workers: usize,
    /// Files of the data set that are not here yet: no key, but what is known of a data set on the Hub.
    #[serde(skip)]
    pub remote_files: RemoteFiles,
    /// The columns that the collator uses, as it says; `None` for all. No key: a source may read these alone.
    #[serde(skip)]
    pub used_columns: Option<Vec<String>>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            dataset: DatasetConfig::default(),
            path: None,
            val_path: None,
            val_fraction: 0.05,
            num_val_blocks: 64,
            sequence_length: 256,
            tokenizer: TokenizerConfig::default(),
            nulls: Nulls::default(),
            collator: CollatorConfig::default(),
            token_cache: TokenCacheConfig::default(),
            start_step: None,
            num_workers: 1,
            remote_files: RemoteFiles::default(),
            used_columns: None,
        }
    }
}

/// Where tokens are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TokenCacheConfig {
    /// In the user's cache folder, or not at all.
    Switch(bool),
    /// In this folder.
    Folder(String),
}

impl Default for TokenCacheConfig {
    fn default() -> Self {
        Self::Switch(false)
    }
}

impl TokenCacheConfig {
    /// The folder with the caches, in the user's folder `cache` unless another is named; `None` if they are off. Error: there is
    /// no such folder.
    pub fn root(&self, cache: Option<&Path>) -> Result<Option<PathBuf>, DataError> {
        match self {
            Self::Switch(false) => Ok(None),
            Self::Folder(folder) => Ok(Some(PathBuf::from(folder))),
            Self::Switch(true) => match cache {
                Some(cache) => Ok(Some(cache.join("tokens"))),
                None => Err(DataError::BadValue {
                    key: "data.token_cache",
                    message: "there is no cache folder without $HOME; name a folder".to_owned(),
                }),
            },
        }
    }
}

/// What becomes of rows without a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Nulls {
    /// They end the run.
    #[default]
    Error,
    /// They are left out, and counted.
    Skip,
}

/// The data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetConfig {
    /// `stories` (made by the program, endless), or what the files of `data.path` are: `text`, `parquet`, `arrow`, `jsonl`,
    /// or `files`, whose names say it.
    pub url: String,
    /// Options of the data set, by name.
    pub kwargs: Map<String, Value>,
}

impl Default for DatasetConfig {
    fn default() -> Self {
        Self {
            url: "stories".to_owned(),
            kwargs: Map::new(),
        }
    }
}

/// The tokenizer: a given one (`path`), else one trained on the data (`vocab_size`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// A `tokenizer.json`, or a folder with one, or `user/name` on the Hugging Face Hub. Without
    /// it, the one of the checkpoint that the run goes on from, else the one beside the weights of
    /// `model.pretrained_url`, else a byte-level BPE tokenizer, trained on the data at the first
    /// run and kept in the user's cache folder. A folder may also hold what older tokenizers are
    /// kept in: `vocab.json` and `merges.txt`, or the `vocab.txt` of BERT.
    pub path: Option<String>,
    /// Tokens of the tokenizer to train, with its 256 bytes and `<|endoftext|>`, and with `<mask>` if
    /// the collator hides tokens.
    #[schemars(range(min = 257))]
    pub vocab_size: usize,
    /// The token that ends a document. Without it, the one that `tokenizer_config.json` names.
    pub eos_token: Option<String>,
    /// The token that hides others in masked language modelling. Without it, the one that
    /// `tokenizer_config.json` names, else `[MASK]` or `<mask>`.
    pub mask_token: Option<String>,
    /// Whether each document begins with what the tokenizer itself puts before a text (its post-processor: `<s>` of Llama 2,
    /// `<|begin_of_text|>` of Llama 3; most others nothing), as in `transformers`.
    pub add_special_tokens: bool,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self {
            path: None,
            vocab_size: 1024,
            eos_token: None,
            mask_token: None,
            add_special_tokens: true,
        }
    }
}

/// What turns rows into batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CollatorConfig {
    /// The collator's name: `file.Type`.
    pub r#type: String,
    /// Options of the collator, by name.
    pub kwargs: Map<String, Value>,
}

impl Default for CollatorConfig {
    fn default() -> Self {
        Self {
            r#type: "tokenize.TokenizeCollator".to_owned(),
            kwargs: Map::new(),
        }
    }
}

/// Options by name, as the type that `T` says. Errors: an unknown name or a wrong type.
pub fn typed_kwargs<T: DeserializeOwned>(
    key: &'static str,
    kwargs: &Map<String, Value>,
) -> Result<T, DataError> {
    serde_json::from_value(Value::Object(kwargs.clone())).map_err(|error| DataError::BadValue {
        key,
        message: error.to_string(),
    })
}
