//! GPT-2: a decoder with learned positions, LayerNorm before each part of a block, biases everywhere, a feed-forward
//! layer without a gate, and weights kept as `[in, out]`.
//!
//! Shapes: ids `[B, T]` to hidden states `[B, T, hidden_size]`, after the final norm; the head is `[vocab_size, hidden_size]`,
//! by default the embedding itself. Names, layout, initial weights and arithmetic are those of transformers'
//! `GPT2LMHeadModel`: projections that end on the residual stream begin smaller, by the root of their number.
//! Sizes have the names that all models here share, so that `model/size` and sweeps hold for every one; `config.json` has
//! GPT-2's own (`n_embd`, `n_layer`, ...).
//! Errors: sizes that do not fit each other; in `config.json`, what would change the numbers and is not known here.
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_nn::{
    Activation, AttentionMask, AttentionOptions, Embedding, Forward, Init, LayerNorm, Linear,
    ModulePath, ParamKind, ParamSpec, PositionEmbedding, Positions, attend,
};
use tt_tensor::Tensor;

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;
use crate::{Input, Model, ModelConfig, TensorNames};

/// `gpt2.GPT2LMHeadModel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpt2Config {
    /// Number of tokens the embedding knows; at least the tokenizer's.
    #[schemars(range(min = 1))]
    pub vocab_size: usize,
    /// Width of the residual stream: `n_embd`.
    #[schemars(range(min = 1))]
    pub hidden_size: usize,
    /// Width of the feed-forward layer: `n_inner`; null: four times `hidden_size`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub intermediate_size: Option<usize>,
    /// Number of blocks: `n_layer`.
    #[schemars(range(min = 1))]
    pub num_hidden_layers: usize,
    /// Number of heads: `n_head`.
    #[schemars(range(min = 1))]
    pub num_attention_heads: usize,
    /// GPT-2 has a key/value head for each query head: null, or their number.
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Longest sequence, in tokens: `n_positions`.
    #[schemars(range(min = 1))]
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding table.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
    /// Between the two layers of the feed-forward: `gelu_new` (by tanh), `gelu` (by erf), `relu` or `silu`.
    #[serde(default = "default_activation_function")]
    pub activation_function: String,
    /// Added to the variance in LayerNorm.
    #[serde(default = "default_layer_norm_epsilon")]
    #[schemars(range(min = 0.0))]
    pub layer_norm_epsilon: f64,
    /// Standard deviation of initial weights; those that end on the residual stream have it over the root of twice the
    /// number of blocks.
    #[serde(default = "default_initializer_range")]
    #[schemars(range(min = 0.0))]
    pub initializer_range: f64,
    /// Dropout of tokens and positions, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub embd_pdrop: f64,
    /// Dropout of attention's probabilities, while training. Above 0 they are held whole, `[B, H, T, T]` a block.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub attn_pdrop: f64,
    /// Dropout of each block's two outputs before they join the residual stream, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub resid_pdrop: f64,
    /// Whether scores are divided by the root of the width of a head.
    #[serde(default = "yes")]
    pub scale_attn_weights: bool,
    /// Whether the scores of the n-th block are divided by n as well.
    #[serde(default)]
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Asks transformers for scores in f32, which is how they are made here in any case.
    #[serde(default)]
    pub reorder_and_upcast_attn: bool,
}

fn yes() -> bool {
    true
}

fn default_activation_function() -> String {
    "gelu_new".to_owned()
}

fn default_layer_norm_epsilon() -> f64 {
    1e-5
}

fn default_initializer_range() -> f64 {
    0.02
}

impl Gpt2Config {
    fn intermediate_size(&self) -> usize {
        self.intermediate_size.unwrap_or(4 * self.hidden_size)
    }

    fn activation(&self) -> Result<Activation> {
        let name = &self.activation_function;
        Activation::from_hf(name).ok_or_else(|| Error::Config {
            key: "activation_function",
            why: format!("`{name}` is not known: gelu_new, gelu, relu and silu are"),
        })
    }

    fn check(&self) -> Result<()> {
        let fail = |key, why: String| Err(Error::Config { key, why });
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if heads == 0 || hidden % heads != 0 {
            let why = format!("{heads} heads do not divide hidden_size {hidden}");
            return fail("num_attention_heads", why);
        }
        if let Some(other) = self.num_key_value_heads.filter(|other| *other != heads) {
            let why = format!(
                "{other} is not supported: GPT-2 has one for each of the {heads} query heads; leave it null"
            );
            return fail("num_key_value_heads", why);
        }
        for (key, p) in [
            ("embd_pdrop", self.embd_pdrop),
            ("attn_pdrop", self.attn_pdrop),
            ("resid_pdrop", self.resid_pdrop),
        ] {
            if !(0.0..1.0).contains(&p) {
                return fail(key, format!("{p} is not in [0, 1)"));
            }
        }
        Ok(())
    }

    /// What scores are multiplied by in the block of that number, from 0.
    fn score_scale(&self, layer: usize) -> f32 {
        let head_dim = (self.hidden_size / self.num_attention_heads) as f32;
        let scale = if self.scale_attn_weights {
            1.0 / head_dim.sqrt()
        } else {
            1.0
        };
        if self.scale_attn_by_inverse_layer_idx {
            scale / (layer + 1) as f32
        } else {
            scale
        }
    }
}

impl ModelConfig for Gpt2Config {
    /// Sizes under GPT-2's names, or under those that transformers takes for any model.
    fn from_hf(config: &Value) -> Result<Self> {
        let hf = HfConfig(config);
        let refuse = |key: &str, why: String| Err(Error::HfConfig(format!("`{key}`: {why}")));
        if let Some(other) = hf.get::<String>("model_type")?.filter(|it| it != "gpt2") {
            return refuse("model_type", format!("`{other}`, this model is `gpt2`"));
        }
        if hf.get("add_cross_attention")? == Some(true) {
            return refuse(
                "add_cross_attention",
                "it is not supported by this model".to_owned(),
            );
        }
        let size = |name: &str, common: &str| match hf.get(name)? {
            Some(size) => Ok(size),
            None if config.get(common).is_some() => hf.require(common),
            None => hf.require(name),
        };
        let switch = |name: &str, default| Ok::<_, Error>(hf.get(name)?.unwrap_or(default));
        let dropout = |name: &str| Ok::<_, Error>(hf.get(name)?.unwrap_or(0.1));
        let read = Self {
            vocab_size: hf.require("vocab_size")?,
            hidden_size: size("n_embd", "hidden_size")?,
            intermediate_size: hf.get("n_inner")?,
            num_hidden_layers: size("n_layer", "num_hidden_layers")?,
            num_attention_heads: size("n_head", "num_attention_heads")?,
            num_key_value_heads: None,
            max_position_embeddings: size("n_positions", "max_position_embeddings")?,
            tie_word_embeddings: switch("tie_word_embeddings", true)?,
            activation_function: hf
                .get("activation_function")?
                .unwrap_or_else(default_activation_function),
            layer_norm_epsilon: hf
                .get("layer_norm_epsilon")?
                .unwrap_or_else(default_layer_norm_epsilon),
            initializer_range: hf
                .get("initializer_range")?
                .unwrap_or_else(default_initializer_range),
            embd_pdrop: dropout("embd_pdrop")?,
            attn_pdrop: dropout("attn_pdrop")?,
            resid_pdrop: dropout("resid_pdrop")?,
            scale_attn_weights: switch("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: switch("scale_attn_by_inverse_layer_idx", false)?,
            reorder_and_upcast_attn: switch("reorder_and_upcast_attn", false)?,
        };
        match read.activation() {
            Err(Error::Config { key, why }) => refuse(key, why),
            _ => Ok(read),
        }
    }

    fn with_training_options(self, ours: &Self) -> Self {
        Self {
            embd_pdrop: ours.embd_pdrop,
            attn_pdrop: ours.attn_pdrop,
            resid_pdrop: ours.resid_pdrop,
            ..self
        }
    }

    fn build(self) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Gpt2LMHeadModel::new(self)?))
    }
}

/// GPT-2, with a head for the next token.
pub struct Gpt2LMHeadModel {
    config: Gpt2Config,
    wte: Embedding,
    wpe: PositionEmbedding,
    drop: ModulePath,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

#[derive(Clone)]
struct Attention {
    path: ModulePath,
    head_dim: usize,
    c_attn: Linear,
    c_proj: Linear,
    options: AttentionOptions,
    dropout: f32,
}

#[derive(Clone)]
struct Mlp {
    path: ModulePath,
    c_fc: Linear,
    activation: Activation,
    c_proj: Linear,
    dropout: f32,
}

impl Gpt2LMHeadModel {
    /// Error: sizes that do not fit each other.
    pub fn new(config: Gpt2Config) -> Result<Self> {
        config.check()?;
        let activation = config.activation()?;
        let root = ModulePath::root().join("transformer");
        let (hidden, std) = (config.hidden_size, config.initializer_range as f32);
        let blocks = (0..config.num_hidden_layers)
            .map(|layer| {
                let path = root.join(format_args!("h.{layer}"));
                Block::new(path, &config, layer, activation)
            })
            .collect();
        Ok(Self {
            wte: Embedding::new(root.join("wte"), config.vocab_size, hidden, std),
            wpe: PositionEmbedding::new(
                root.join("wpe"),
                config.max_position_embeddings,
                hidden,
                std,
            ),
            drop: root.join("drop"),
            blocks,
            ln_f: LayerNorm::new(root.join("ln_f"), hidden, config.layer_norm_epsilon),
            config,
        })
    }
}

impl Block {
    fn new(path: ModulePath, config: &Gpt2Config, layer: usize, activation: Activation) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size());
        let std = config.initializer_range as f32;
        // Two of them in a block end on the residual stream, whose variance their number would otherwise multiply.
        let ending_std = std / (2.0 * config.num_hidden_layers as f32).sqrt();
        let linear = |path, inputs, outputs, std| {
            let linear = Linear::new(path, inputs, outputs).with_std(std);
            linear.with_bias().with_weight_in_out()
        };
        let norm = |name| LayerNorm::new(path.join(name), hidden, config.layer_norm_epsilon);
        let (attn, mlp) = (path.join("attn"), path.join("mlp"));
        Self {
            ln_1: norm("ln_1"),
            attn: Attention {
                head_dim: hidden / config.num_attention_heads,
                c_attn: linear(attn.join("c_attn"), hidden, 3 * hidden, std),
                c_proj: linear(attn.join("c_proj"), hidden, hidden, ending_std),
                options: AttentionOptions {
                    scale: Some(config.score_scale(layer)),
                    dropout: config.attn_pdrop as f32,
                    ..AttentionMask::CAUSAL.into()
                },
                dropout: config.resid_pdrop as f32,
                path: attn,
            },
            ln_2: norm("ln_2"),
            mlp: Mlp {
                c_fc: linear(mlp.join("c_fc"), hidden, inner, std),
                activation,
                c_proj: linear(mlp.join("c_proj"), inner, hidden, ending_std),
                dropout: config.resid_pdrop as f32,
                path: mlp,
            },
            path,
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        let (attn, mlp) = (&self.attn, &self.mlp);
        [
            self.ln_1.params(),
            attn.c_attn.params(),
            attn.c_proj.params(),
            self.ln_2.params(),
            mlp.c_fc.params(),
            mlp.c_proj.params(),
        ]
        .concat()
    }

    /// `x` `[B, T, hidden]` to the same shape.
    fn forward(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let (this, positions) = (self.clone(), positions.clone());
        fwd.module(&self.path, "GPT2Block", x, move |fwd, x| {
            let y = this.ln_1.forward(fwd, x)?;
            let x = x.add(&this.attn.forward(fwd, &y, &positions)?)?;
            let y = this.ln_2.forward(fwd, &x)?;
            Ok(x.add(&this.mlp.forward(fwd, &y)?)?)
        })
    }
}

impl Attention {
    /// `x` `[B, T, hidden]` to the same shape.
    fn forward(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let (this, positions) = (self.clone(), positions.clone());
        fwd.module(&self.path, "GPT2Attention", x, move |fwd, x| {
            let [b, t, _] = x.dims_of("attention")?;
            let qkv = this.c_attn.forward(fwd, x)?; // [B, T, 3 H D]
            let width = qkv.dims()[2] / 3;
            let part = |i| {
                let part = qkv.narrow(2, i * width, width)?;
                part.reshape((b, t, width / this.head_dim, this.head_dim)) // [B, T, H, D]
            };
            let qkv = [part(0)?, part(1)?, part(2)?];
            let y = attend(fwd, &this.path, qkv, &positions, this.options)?;
            let y = this.c_proj.forward(fwd, &y.reshape((b, t, width))?)?;
            fwd.dropout(&this.path.join("resid_dropout"), y, this.dropout)
        })
    }
}

impl Mlp {
    /// `x` `[B, T, hidden]` to the same shape.
    fn forward(&self, fwd: &Forward, x: &Tensor) -> tt_nn::Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "GPT2MLP", x, move |fwd, x| {
            let y = this.activation.apply(&this.c_fc.forward(fwd, x)?)?; // [B, T, inner]
            let y = this.c_proj.forward(fwd, &y)?;
            fwd.dropout(&this.path.join("dropout"), y, this.dropout)
        })
    }
}

impl Model for Gpt2LMHeadModel {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = [self.wte.params(), self.wpe.params()].concat();
        params.extend(self.blocks.iter().flat_map(Block::params));
        params.extend(self.ln_f.params());
        if !self.config.tie_word_embeddings {
            params.push(ParamSpec {
                path: "lm_head.weight".into(),
                shape: vec![self.config.vocab_size, self.config.hidden_size],
                init: Init::Normal {
                    std: self.config.initializer_range as f32,
                },
                kind: ParamKind::Head,
            });
        }
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let tokens = self.wte.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        let x = tokens.add(&self.wpe.forward(fwd, &input.positions)?)?;
        let mut x = fwd.dropout(&self.drop, x, self.config.embd_pdrop as f32)?;
        for block in &self.blocks {
            x = block.forward(fwd, &x, &input.positions)?;
        }
        Ok(self.ln_f.forward(fwd, &x)?)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(if self.config.tie_word_embeddings {
            self.wte.weight(fwd)?
        } else {
            fwd.param(&ModulePath::root(), "lm_head.weight")?
        })
    }

    /// The files of OpenAI are of the model without its head, so without the prefix, and old ones hold the causal masks.
    fn tensor_names(&self) -> TensorNames {
        let names = TensorNames::default()
            .with_optional_prefix("transformer.")
            .ignoring(&["*.attn.bias", "*.attn.masked_bias"]);
        if self.config.tie_word_embeddings {
            names.with_copies(&[("lm_head.weight", "transformer.wte.weight")])
        } else {
            names
        }
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.path.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn hf_config(&self) -> Value {
        let config = &self.config;
        json!({
            "activation_function": config.activation_function,
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": config.attn_pdrop,
            "embd_pdrop": config.embd_pdrop,
            "initializer_range": config.initializer_range,
            "layer_norm_epsilon": config.layer_norm_epsilon,
            "model_type": "gpt2",
            "n_ctx": config.max_position_embeddings, // llama.cpp's converter asks for it
            "n_embd": config.hidden_size,
            "n_head": config.num_attention_heads,
            "n_inner": config.intermediate_size,
            "n_layer": config.num_hidden_layers,
            "n_positions": config.max_position_embeddings,
            "reorder_and_upcast_attn": config.reorder_and_upcast_attn,
            "resid_pdrop": config.resid_pdrop,
            "scale_attn_by_inverse_layer_idx": config.scale_attn_by_inverse_layer_idx,
            "scale_attn_weights": config.scale_attn_weights,
            "tie_word_embeddings": config.tie_word_embeddings,
            "torch_dtype": "float32",
            "vocab_size": config.vocab_size,
        })
    }
}
