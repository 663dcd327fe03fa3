//! Qwen3: a decoder that normalises each query and key head, with a head size of its own and without biases.
//!
//! Numbers are those of transformers' `Qwen3ForCausalLM`; see [`Decoder`].
//! Source: Yang et al. 2025, arXiv:2505.09388.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decoder::{Architecture, BlockOptions, Decoder, DecoderConfig, SlidingWindowConfig};
use crate::error::Result;
use crate::hf_config::HfConfig;

/// Qwen3, with a head for the next token.
pub type Qwen3ForCausalLM = Decoder<Qwen3Config>;

/// `qwen3.Qwen3ForCausalLM`. Keys are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Qwen3Config {
    /// What all decoders have.
    #[serde(flatten)]
    pub decoder: DecoderConfig,
    /// Biases on the four projections of attention.
    #[serde(default)]
    pub attention_bias: bool,
    /// Which layers see a window only.
    #[serde(flatten)]
    pub windows: SlidingWindowConfig,
}

impl Architecture for Qwen3Config {
    const MODEL_TYPE: &'static str = "qwen3";
    const CLASS: &'static str = "Qwen3ForCausalLM";
    const BLOCK_CLASS: &'static str = "Qwen3DecoderLayer";

    fn read(hf: &HfConfig<'_>) -> Result<Self> {
        let mut decoder = DecoderConfig::from_hf(hf, 32_768)?;
        decoder.head_dim.get_or_insert(128);
        Ok(Self {
            attention_bias: hf.get("attention_bias")?.unwrap_or(false),
            windows: SlidingWindowConfig::from_hf(hf, decoder.num_hidden_layers)?,
            decoder,
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn decoder_mut(&mut self) -> &mut DecoderConfig {
        &mut self.decoder
    }

    fn block(&self, layer: usize) -> BlockOptions {
        BlockOptions {
            qkv_bias: self.attention_bias,
            attention_output_bias: self.attention_bias,
            qk_norm: true,
            window: self.windows.of_layer(layer),
            ..BlockOptions::default()
        }
    }

    fn check(&self) -> Result<()> {
        self.windows.check()
    }
}
