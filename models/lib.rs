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

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bert;
mod checked;
mod decoder;
mod error;
mod gpt2;
mod hf_config;
mod llama;
mod modules;
mod plugin;
mod qwen2;
mod qwen3;
mod table;
mod tensor_names;

use serde_json::Value;
use tt_nn::{Forward, ModulePath, ParamSpec, Positions};
use tt_tensor::{Tensor, fused};

pub use bert::{BertConfig, BertForMaskedLM};
pub use checked::Checked;
pub use decoder::{Architecture, BlockOptions, Decoder, DecoderConfig, SlidingWindowConfig};
pub use error::{Error, Result};
pub use gpt2::{Gpt2Config, Gpt2LMHeadModel};
pub use hf_config::{HfConfig, HfRope};
pub use llama::{LlamaConfig, LlamaForCausalLM};
pub use modules::modules;
pub use plugin::{BuildModel, ModelConfig, ReadModel, entry};
pub use qwen2::{Qwen2Config, Qwen2ForCausalLM};
pub use qwen3::{Qwen3Config, Qwen3ForCausalLM};
pub use table::TABLE;
pub use tensor_names::TensorNames;

/// What a model reads: a batch of token rows and where the tokens stand.
#[derive(Clone, Debug)]
pub struct Input {
    /// u32 `[B, T]`.
    pub input_ids: Tensor,
    /// Where the tokens stand in their documents.
    pub positions: Positions,
    /// What else the batch says, by name: of each token `[B, T]`, e.g. `token_type_ids`, or of each row `[B]`.
    pub fields: Vec<(&'static str, Tensor)>,
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
            fields: Vec::new(),
        })
    }

    /// What the batch says under `name`, if it does.
    pub fn field(&self, name: &str) -> Option<&Tensor> {
        let mut fields = self.fields.iter();
        fields.find_map(|(known, values)| (*known == name).then_some(values))
    }
}

/// How a model continues a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Token by token: every module that looks at earlier tokens keeps what it needs of them in the cache of the pass
    /// (see [`tt_nn::KvCache`]). A model whose blocks leave the cache empty has its whole text read again for each token.
    Cached,
    /// The whole text is read again for each token.
    Recomputed,
    /// It does not, e.g. because its attention looks ahead.
    Unable,
}

/// A language model: token ids in, hidden states and then logits out.
///
/// The methods without a default are its mathematics and sizes; the others say what tells it from a causal decoder whose head is
/// one weight and whose parameters are saved under their own paths.
pub trait Model: Send + Sync {
    /// All parameters by path; a tied weight once. By default they are named so in checkpoints: as Hugging Face does.
    fn params(&self) -> Vec<ParamSpec>;

    /// Hidden states `[B, T, hidden]`, ready for the last linear layer: what a head does before it (BERT's transform) is
    /// done. With a cache in `fwd`, `input` continues what it holds.
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor>;

    /// What the blocks make of each token `[B, T, hidden]`, before anything that the head does to it: what embeddings of texts
    /// are made of. The same as [`Model::hidden_states`] but for a head with a transform.
    fn encode(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        self.hidden_states(fwd, input)
    }

    /// The output head's weight `[vocab, hidden]`. A head that is more than a weight is given by [`Model::output`], and
    /// this is [`Error::MoreThanAWeight`], so that no loss leaves out the rest unseen.
    fn head(&self, fwd: &Forward) -> Result<Tensor>;

    /// The last linear layer: weight `[vocab, hidden]` and bias `[vocab]`, if it has one.
    fn output(&self, fwd: &Forward) -> Result<fused::Head> {
        Ok(self.head(fwd)?.into())
    }

    /// Whether no position sees those after it, so that the model can be trained to predict the next token.
    fn is_causal(&self) -> bool {
        true
    }

    /// How it continues a text.
    fn generation(&self) -> Generation {
        if self.is_causal() {
            Generation::Cached
        } else {
            Generation::Unable
        }
    }

    /// What its parameters are called in checkpoints.
    fn tensor_names(&self) -> TensorNames {
        TensorNames::default()
    }

    /// The repeated blocks, each `hidden -> hidden`, in order: the units of remat, sharding and pipelining.
    fn blocks(&self) -> Vec<ModulePath>;

    /// How many tokens it knows: one more than the greatest id.
    fn vocab_size(&self) -> usize;

    /// Longest sequence the model takes.
    fn max_positions(&self) -> usize;

    /// The `config.json` that makes transformers build this model.
    fn hf_config(&self) -> Value;

    /// Logits `[B, T, vocab]`, held whole: for generation and tests. Training uses the fused loss.
    fn logits(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let hidden = self.hidden_states(fwd, input)?;
        Ok(fused::logits(&hidden, &self.output(fwd)?)?)
    }
}
