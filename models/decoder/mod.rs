//! The decoder that Llama, Qwen2 and Qwen3 are: blocks of RMSNorm, grouped-query attention with rotary positions and
//! a gated feed-forward layer, on a residual stream.
//!
//! Shapes: ids `[B, T]` to hidden states `[B, T, hidden_size]`, after the final norm; the head is `[vocab_size, hidden_size]`.
//! Parameter names, initialisation and arithmetic are those of transformers. What tells one architecture from
//! another is its [`Architecture`]: a config and what a block of it has.

mod config;
mod window;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tt_nn::{
    AttentionShape, Embedding, Forward, GatedMlp, Init, ModulePath, ParamKind, ParamSpec,
    Positions, RmsNorm, Rope, SelfAttention,
};
use tt_tensor::Tensor;

pub use config::DecoderConfig;
pub use window::SlidingWindowConfig;

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;
use crate::{Input, Model, ModelConfig, TensorNames};

/// One architecture of a [`Decoder`]: its config, and what that means for a block.
pub trait Architecture:
    Clone + Send + Sync + Serialize + DeserializeOwned + JsonSchema + 'static
{
    /// `model_type` and the classes of the model and of its block, as transformers names them.
    const MODEL_TYPE: &'static str;
    /// The model as transformers names it: `LlamaForCausalLM`.
    const CLASS: &'static str;
    /// A block as transformers names it: `LlamaDecoderLayer`; remat finds blocks by it.
    const BLOCK_CLASS: &'static str;

    /// From `config.json`. Error: a key is missing, has the wrong type or asks for the unsupported.
    fn read(hf: &HfConfig<'_>) -> Result<Self>;

    /// What all decoders have.
    fn decoder(&self) -> &DecoderConfig;

    /// The same, to be changed.
    fn decoder_mut(&mut self) -> &mut DecoderConfig;

    /// What the block of that number has, from 0.
    fn block(&self, layer: usize) -> BlockOptions;

    /// What is wrong beside what [`DecoderConfig`] can tell.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// What a block has that not all architectures share.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockOptions {
    /// Biases on the projections to queries, keys and values.
    pub qkv_bias: bool,
    /// A bias on the projection after attention.
    pub attention_output_bias: bool,
    /// Biases on the three projections of the feed-forward.
    pub mlp_bias: bool,
    /// RMSNorm of each query and key head.
    pub qk_norm: bool,
    /// Positions a query looks back, itself included; `None`: all.
    pub window: Option<usize>,
}

impl<C: Architecture> ModelConfig for C {
    fn from_hf(config: &Value) -> Result<Self> {
        let hf = HfConfig(config);
        match hf.get::<String>("model_type")? {
            Some(other) if other != C::MODEL_TYPE => {
                let why = format!("`model_type`: `{other}`, this model is `{}`", C::MODEL_TYPE);
                Err(Error::HfConfig(why))
            }
            _ => C::read(&hf),
        }
    }

    fn with_training_options(mut self, ours: &Self) -> Self {
        self.decoder_mut().hidden_dropout = ours.decoder().hidden_dropout;
        self
    }

    fn build(self) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Decoder::new(self)?))
    }
}

/// A causal language model of the architecture `C`: blocks of RMSNorm, grouped-query attention with rotary positions and
/// a gated feed-forward layer, on a residual stream.
///
/// Shapes: ids `[B, T]` to hidden states `[B, T, hidden_size]`, after the final norm; the head is
/// `[vocab_size, hidden_size]`. Names, initial weights and arithmetic are those of transformers.
pub struct Decoder<C> {
    config: C,
    embed_tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    rope: Rope,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    class: &'static str,
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    dropout: f32,
}

impl<C: Architecture> Decoder<C> {
    /// Error: sizes that do not fit each other.
    pub fn new(config: C) -> Result<Self> {
        let sizes = config.decoder();
        sizes.check()?;
        config.check()?;
        let root = ModulePath::root().join("model");
        let (hidden, eps) = (sizes.hidden_size, sizes.rms_norm_eps);
        let std = sizes.initializer_range as f32;
        let blocks = (0..sizes.num_hidden_layers)
            .map(|layer| {
                let path = root.join(format_args!("layers.{layer}"));
                Block::new(path, C::BLOCK_CLASS, sizes, config.block(layer))
            })
            .collect();
        let rope = Rope::new(
            sizes.head_dim(),
            sizes.rope_theta,
            sizes.max_position_embeddings,
        );
        Ok(Self {
            embed_tokens: Embedding::new(root.join("embed_tokens"), sizes.vocab_size, hidden, std),
            blocks,
            norm: RmsNorm::new(root.join("norm"), hidden, eps),
            rope: rope.with_scaling(sizes.rope_scaling),
            config,
        })
    }

    /// What it was built from.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The rotary embedding that all blocks share.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }
}

impl Block {
    fn new(
        path: ModulePath,
        class: &'static str,
        sizes: &DecoderConfig,
        options: BlockOptions,
    ) -> Self {
        let (hidden, eps) = (sizes.hidden_size, sizes.rms_norm_eps);
        let std = sizes.initializer_range as f32;
        let attention = AttentionShape {
            hidden,
            heads: sizes.num_attention_heads,
            kv_heads: sizes.num_key_value_heads,
            head_dim: sizes.head_dim(),
            qkv_bias: options.qkv_bias,
            output_bias: options.attention_output_bias,
            qk_norm_eps: options.qk_norm.then_some(eps),
            causal: true,
            window: options.window,
            init_std: std,
        };
        let norm = |name| RmsNorm::new(path.join(name), hidden, eps);
        let mlp = GatedMlp::new(path.join("mlp"), hidden, sizes.intermediate_size, std);
        Self {
            class,
            input_layernorm: norm("input_layernorm"),
            self_attn: SelfAttention::new(path.join("self_attn"), &attention),
            post_attention_layernorm: norm("post_attention_layernorm"),
            mlp: mlp.with_bias(options.mlp_bias),
            dropout: sizes.hidden_dropout as f32,
            path,
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        let mut params = self.input_layernorm.params();
        params.extend(self.self_attn.params());
        params.extend(self.post_attention_layernorm.params());
        params.extend(self.mlp.params());
        params
    }

    /// `x` `[B, T, hidden]` to the same shape.
    fn forward(
        &self,
        fwd: &Forward,
        x: &Tensor,
        rope: &Rope,
        positions: &Positions,
    ) -> tt_nn::Result<Tensor> {
        let (this, rope, positions) = (self.clone(), rope.clone(), positions.clone());
        fwd.module(&self.path, self.class, x, move |fwd, x| {
            let y = this.input_layernorm.forward(fwd, x)?;
            let y = this.self_attn.forward(fwd, &y, &rope, &positions)?;
            let y = fwd.dropout(&this.path.join("self_attn"), y, this.dropout)?;
            let x = x.add(&y)?;
            let y = this.post_attention_layernorm.forward(fwd, &x)?;
            let y = this.mlp.forward(fwd, &y)?;
            let y = fwd.dropout(&this.path.join("mlp"), y, this.dropout)?;
            Ok(x.add(&y)?)
        })
    }
}

impl<C: Architecture> Model for Decoder<C> {
    fn params(&self) -> Vec<ParamSpec> {
        let sizes = self.config.decoder();
        let mut params = self.embed_tokens.params();
        params.extend(self.blocks.iter().flat_map(Block::params));
        params.extend(self.norm.params());
        if !sizes.tie_word_embeddings {
            params.push(ParamSpec {
                path: "lm_head.weight".into(),
                shape: vec![sizes.vocab_size, sizes.hidden_size],
                init: Init::Normal {
                    std: sizes.initializer_range as f32,
                },
                kind: ParamKind::Head,
            });
        }
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let mut x = self.embed_tokens.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        for block in &self.blocks {
            x = block.forward(fwd, &x, &self.rope, &input.positions)?;
        }
        Ok(self.norm.forward(fwd, &x)?)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(if self.config.decoder().tie_word_embeddings {
            self.embed_tokens.weight(fwd)?
        } else {
            fwd.param(&ModulePath::root(), "lm_head.weight")?
        })
    }

    /// Some files hold a tied head a second time.
    fn tensor_names(&self) -> TensorNames {
        // Files of the model without its head have no prefix.
        let names = TensorNames::default().with_optional_prefix("model.");
        if self.config.decoder().tie_word_embeddings {
            names.with_copies(&[("lm_head.weight", "model.embed_tokens.weight")])
        } else {
            names
        }
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.path.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.config.decoder().vocab_size
    }

    fn max_positions(&self) -> usize {
        self.config.decoder().max_position_embeddings
    }

    /// The config, whose keys are named as in `config.json`, and what it leaves unsaid.
    fn hf_config(&self) -> Value {
        let sizes = self.config.decoder();
        let Ok(Value::Object(mut hf)) = serde_json::to_value(&self.config) else {
            unreachable!("a config is a mapping with keys of text")
        };
        hf.remove("hidden_dropout"); // ours alone
        // A number even without windows: readers other than transformers demand one.
        if let Some(window) = hf.get_mut("sliding_window").filter(|it| it.is_null()) {
            *window = sizes.max_position_embeddings.into();
        }
        let unsaid = json!({
            "architectures": [C::CLASS],
            "attention_dropout": 0.0,
            "head_dim": sizes.head_dim(),
            "hidden_act": "silu",
            "model_type": C::MODEL_TYPE,
            "torch_dtype": "float32",
        });
        hf.extend(
            unsaid
                .as_object()
                .into_iter()
                .cloned()
                .flat_map(Map::into_iter),
        );
        hf.sort_keys();
        Value::Object(hf)
    }
}
