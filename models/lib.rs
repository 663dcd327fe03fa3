//! Models: math on module paths. A model knows neither how its weights are sharded nor what is recomputed.
//!
//! ```
//! use tt_models::{Input, Model, Qwen2Config, Qwen2ForCausalLM};
//! use tt_nn::{Forward, ParamTree};
//! use tt_tensor::{Device, Seed, Tensor};
//!
//! # fn main() -> tt_models::Result<()> {
//! # let config = r#"{"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
//! #   "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}"#;
//! # let config: Qwen2Config = serde_json::from_str(config).unwrap();
//! let model = Qwen2ForCausalLM::new(config)?;
//! let params = ParamTree::init(&model.params(), Seed::new(0), Device::Cpu)?;
//! let ids = Tensor::from_slice(&[1u32, 2, 3], (1, 3), Device::Cpu)?;
//! let logits = model.logits(&Forward::inference(&params), &Input::rows(ids)?)?;
//! assert_eq!(logits.dims(), [1, 3, 16]);
//! # Ok(())
//! # }
//! ```
//!
//! To add a model: a file, a line in [`TABLE`], a YAML under `configs/model/`, a golden.

mod decoder;
mod error;
mod hf_config;
mod llama;
mod modules;
mod plugin;
mod qwen2;
mod qwen3;

use serde_json::Value;
use tt_config::Table;
use tt_nn::{Forward, ModulePath, ParamSpec, Positions};
use tt_tensor::{Tensor, fused};

pub use decoder::{Architecture, BlockOptions, Decoder, DecoderConfig, SlidingWindowConfig};
pub use error::{Error, Result};
pub use hf_config::{HfConfig, HfRope};
pub use llama::{LlamaConfig, LlamaForCausalLM};
pub use modules::modules;
pub use plugin::{BuildModel, ModelConfig, ReadModel, entry};
pub use qwen2::{Qwen2Config, Qwen2ForCausalLM};
pub use qwen3::{Qwen3Config, Qwen3ForCausalLM};

/// What a model reads: a batch of token rows and where the tokens stand.
#[derive(Clone, Debug)]
pub struct Input {
    /// u32 `[B, T]`.
    pub input_ids: Tensor,
    pub positions: Positions,
}

impl Input {
    /// Rows that are one document each, counted from position 0.
    pub fn rows(input_ids: Tensor) -> Result<Self> {
        Self::continuing(input_ids, 0)
    }

    /// Rows that continue `past` earlier tokens, held by a cache.
    pub fn continuing(input_ids: Tensor, past: usize) -> Result<Self> {
        let [b, t] = input_ids.dims_of("input")?;
        let row = past as u32..(past + t) as u32;
        let ids: Vec<u32> = std::iter::repeat_n(row, b).flatten().collect();
        let position_ids = Tensor::from_slice(&ids, (b, t), input_ids.device())?;
        Ok(Self {
            input_ids,
            positions: Positions {
                position_ids,
                bound: past + t,
                segment_ids: None,
            },
        })
    }
}

/// A causal language model.
pub trait Model: Send + Sync {
    /// All parameters, named as in Hugging Face checkpoints; a tied weight once.
    fn params(&self) -> Vec<ParamSpec>;

    /// Hidden states `[B, T, hidden]`, ready for the head. With a cache in `fwd`, `input` continues what it holds.
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor>;

    /// The output head's weight `[vocab, hidden]`.
    fn head(&self, fwd: &Forward) -> Result<Tensor>;

    /// The repeated blocks, each `hidden -> hidden`, in order: the units of remat, sharding and pipelining.
    fn blocks(&self) -> Vec<ModulePath>;

    fn vocab_size(&self) -> usize;

    /// Longest sequence the model takes.
    fn max_positions(&self) -> usize;

    /// The `config.json` that makes transformers build this model.
    fn hf_config(&self) -> Value;

    /// Logits `[B, T, vocab]`, held whole: for generation and tests. Training uses the fused loss.
    fn logits(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let hidden = self.hidden_states(fwd, input)?;
        Ok(fused::logits(&hidden, &self.head(fwd)?)?)
    }
}

/// What `model.type` may name.
pub const TABLE: Table<BuildModel> = Table::new(
    "model",
    &[
        entry::<LlamaConfig>(
            "llama.LlamaForCausalLM",
            "Llama 2 and 3: RMSNorm, grouped-query attention, RoPE, SwiGLU",
        ),
        entry::<Qwen2Config>(
            "qwen2.Qwen2ForCausalLM",
            "Qwen2: Llama with biased query, key and value projections",
        ),
        entry::<Qwen3Config>(
            "qwen3.Qwen3ForCausalLM",
            "Qwen3: Llama with normalised query and key heads",
        ),
    ],
);
