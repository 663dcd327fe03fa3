//! Qwen2: a decoder with biases on the query, key and value projections.
//!
//! Numbers are those of transformers' `Qwen2ForCausalLM`; see [`Decoder`].
//! Source: Yang et al. 2024, arXiv:2407.10671.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decoder::{Architecture, BlockOptions, Decoder, DecoderConfig, SlidingWindowConfig};
use crate::error::Result;
use crate::hf_config::HfConfig;

/// Qwen2, with a head for the next token.
pub type Qwen2ForCausalLM = Decoder<Qwen2Config>;

/// `qwen2.Qwen2ForCausalLM`. Keys are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Qwen2Config {
    /// What all decoders have.
    #[serde(flatten)]
    pub decoder: DecoderConfig,
    /// Which layers see a window only.
    #[serde(flatten)]
    pub windows: SlidingWindowConfig,
}

impl Architecture for Qwen2Config {
    const MODEL_TYPE: &'static str = "qwen2";
    const CLASS: &'static str = "Qwen2ForCausalLM";
    const BLOCK_CLASS: &'static str = "Qwen2DecoderLayer";

    fn read(hf: &HfConfig<'_>) -> Result<Self> {
        let decoder = DecoderConfig::from_hf(hf, 32_768)?;
        Ok(Self {
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
            qkv_bias: true,
            window: self.windows.of_layer(layer),
            ..BlockOptions::default()
        }
    }

    fn check(&self) -> Result<()> {
        self.windows.check()
    }
}
