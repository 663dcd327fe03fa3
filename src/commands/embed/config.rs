//! The root config of `embed`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tt_engine::Pooling;

use crate::config::Precision;
use crate::device::DeviceConfig;

/// What is embedded, by what, and where it goes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EmbedConfig {
    /// A run folder, whose newest checkpoint is taken, any folder in Hugging Face or peft layout, a GGUF file, or
    /// `user/name@revision` on the Hub.
    pub(super) checkpoint: String,
    /// The model that an adapter is on, named in the same way, if it is not where the adapter says.
    pub(super) base: Option<String>,
    /// A file of texts; null: standard input, unless the flag `--text` gives them.
    pub(super) input: Option<PathBuf>,
    /// How texts stand there; null: as the file's name says, else a text a line.
    pub(super) format: Option<Format>,
    /// Of `jsonl`: the key of the text, which may be a path such as `meta.title`.
    pub(super) field: String,
    /// A file to write, `.npy` (f32 `[N, H]`) or `.jsonl`, over what is there; null: JSONL to standard output.
    pub(super) out: Option<PathBuf>,
    /// How the states of a text's tokens become one vector; null: as `1_Pooling/config.json` beside the weights says, where
    /// `sentence-transformers` has written it, else their mean.
    pub(super) pooling: Option<PoolingName>,
    /// Whether vectors are divided by their L2 norm.
    pub(super) normalize: bool,
    /// Tokens of a text with what is put around it; what is over is cut off its end. Null: what the model takes.
    #[schemars(range(min = 1))]
    pub(super) max_length: Option<usize>,
    /// Texts that are read at once. Vectors differ by rounding.
    #[schemars(range(min = 1))]
    pub(super) batch_size: usize,
    /// Whether a text gets around it what the tokenizer's post-processor puts there: `[CLS]` and `[SEP]` of BERT, `<s>`.
    pub(super) add_special_tokens: bool,
    /// Number format of matrix products and attention.
    pub(super) precision: Precision,
    /// What it runs on.
    pub(super) device: DeviceConfig,
}

/// How texts stand in a file.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    /// One a line.
    Lines,
    /// In an object a line.
    Jsonl,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PoolingName {
    /// Their mean.
    Mean,
    /// That of the first token: `[CLS]` of BERT.
    Cls,
    /// That of the last token.
    Last,
}

impl From<PoolingName> for Pooling {
    fn from(name: PoolingName) -> Self {
        match name {
            PoolingName::Mean => Self::Mean,
            PoolingName::Cls => Self::First,
            PoolingName::Last => Self::Last,
        }
    }
}
