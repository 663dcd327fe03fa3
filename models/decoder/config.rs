//! What the configs of Llama, Qwen2 and Qwen3 have in common. Keys are named as in Hugging Face's `config.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::RopeScaling;

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;

/// Sizes of a decoder, and what all of them can choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecoderConfig {
    /// Number of tokens the embedding knows; at least the tokenizer's.
    #[schemars(range(min = 1))]
    pub vocab_size: usize,
    /// Width of the residual stream.
    #[schemars(range(min = 1))]
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    #[schemars(range(min = 1))]
    pub intermediate_size: usize,
    /// Number of decoder blocks.
    #[schemars(range(min = 1))]
    pub num_hidden_layers: usize,
    /// Number of query heads.
    #[schemars(range(min = 1))]
    pub num_attention_heads: usize,
    /// Number of key/value heads; divides `num_attention_heads`.
    #[schemars(range(min = 1))]
    pub num_key_value_heads: usize,
    /// Width of a head, even; null: `hidden_size / num_attention_heads`.
    #[serde(default)]
    #[schemars(range(min = 2))]
    pub head_dim: Option<usize>,
    /// Longest sequence, in tokens.
    #[schemars(range(min = 1))]
    pub max_position_embeddings: usize,
    /// Added to the mean square in RMSNorm.
    #[serde(default = "default_rms_norm_eps")]
    #[schemars(range(min = 0.0))]
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    #[schemars(range(min = 1.0))]
    pub rope_theta: f64,
    /// Stretches the rotary frequencies to sequences longer than those of an earlier training; null: as they are.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Standard deviation of initial weights.
    #[serde(default = "default_initializer_range")]
    #[schemars(range(min = 0.0))]
    pub initializer_range: f64,
    /// Dropout of each block's two outputs before they join the residual stream, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub hidden_dropout: f64,
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_rope_theta() -> f64 {
    10_000.0
}

fn default_initializer_range() -> f64 {
    0.02
}

impl DecoderConfig {
    /// Reads a `config.json`; `max_positions` is the architecture's own default.
    pub(crate) fn from_hf(hf: &HfConfig<'_>, max_positions: usize) -> Result<Self> {
        if let Some(act) = hf.get::<String>("hidden_act")?.filter(|act| act != "silu") {
            let why = format!("`hidden_act`: `{act}` is not supported by this model");
            return Err(Error::HfConfig(why));
        }
        if let Some(p) = hf.get::<f64>("attention_dropout")?.filter(|p| *p != 0.0) {
            let why = format!("`attention_dropout`: {p} is not supported, only 0");
            return Err(Error::HfConfig(why));
        }
        let heads = hf.require("num_attention_heads")?;
        let max_position_embeddings = hf.get("max_position_embeddings")?.unwrap_or(max_positions);
        let rope = hf.rope(max_position_embeddings)?;
        Ok(Self {
            vocab_size: hf.require("vocab_size")?,
            hidden_size: hf.require("hidden_size")?,
            intermediate_size: hf.require("intermediate_size")?,
            num_hidden_layers: hf.require("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: hf.get("num_key_value_heads")?.unwrap_or(heads),
            head_dim: hf.get("head_dim")?,
            max_position_embeddings,
            rms_norm_eps: hf.get("rms_norm_eps")?.unwrap_or(default_rms_norm_eps()),
            rope_theta: rope.theta.unwrap_or(default_rope_theta()),
            rope_scaling: rope.scaling,
            tie_word_embeddings: hf.get("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: hf
                .get("initializer_range")?
                .unwrap_or(default_initializer_range()),
            hidden_dropout: 0.0,
        })
    }

    /// The width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    pub(super) fn check(&self) -> Result<()> {
        let fail = |key, why: String| Err(Error::Config { key, why });
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if heads == 0 || (self.head_dim.is_none() && hidden % heads != 0) {
            let why = format!("{heads} heads do not divide hidden_size {hidden}");
            return fail("num_attention_heads", why);
        }
        let head_dim = self.head_dim();
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            let key = match self.head_dim {
                Some(_) => "head_dim",
                None => "num_attention_heads",
            };
            return fail(key, format!("heads of {head_dim} are not even"));
        }
        let kv_heads = self.num_key_value_heads;
        if kv_heads == 0 || heads % kv_heads != 0 {
            let why = format!("{kv_heads} does not divide num_attention_heads {heads}");
            return fail("num_key_value_heads", why);
        }
        if let Some(why) = self.rope_scaling.and_then(|scaling| scaling.problem()) {
            return fail("rope_scaling", why);
        }
        if !(0.0..1.0).contains(&self.hidden_dropout) {
            let why = format!("{} is not in [0, 1)", self.hidden_dropout);
            return fail("hidden_dropout", why);
        }
        Ok(())
    }
}
