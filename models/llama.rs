//! Llama 2 and 3, and what follows them (TinyLlama, SmolLM): a decoder without biases.
//!
//! Numbers are those of transformers' `LlamaForCausalLM`; see [`Decoder`].
//! Source: Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decoder::{Architecture, BlockOptions, Decoder, DecoderConfig};
use crate::error::Result;
use crate::hf_config::HfConfig;

/// Llama, with a head for the next token.
pub type LlamaForCausalLM = Decoder<LlamaConfig>;

/// `llama.LlamaForCausalLM`. Keys are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LlamaConfig {
    /// What all decoders have.
    #[serde(flatten)]
    pub decoder: DecoderConfig,
    /// Biases on the four projections of attention.
    #[serde(default)]
    pub attention_bias: bool,
    /// Biases on the three projections of the feed-forward layer.
    #[serde(default)]
    pub mlp_bias: bool,
}

impl Architecture for LlamaConfig {
    const MODEL_TYPE: &'static str = "llama";
    const CLASS: &'static str = "LlamaForCausalLM";
    const BLOCK_CLASS: &'static str = "LlamaDecoderLayer";

    fn read(hf: &HfConfig<'_>) -> Result<Self> {
        Ok(Self {
            decoder: DecoderConfig::from_hf(hf, 2048)?,
            attention_bias: hf.get("attention_bias")?.unwrap_or(false),
            mlp_bias: hf.get("mlp_bias")?.unwrap_or(false),
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn decoder_mut(&mut self) -> &mut DecoderConfig {
        &mut self.decoder
    }

    fn block(&self, _layer: usize) -> BlockOptions {
        BlockOptions {
            qkv_bias: self.attention_bias,
            attention_output_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            ..BlockOptions::default()
        }
    }
}
