//! Qwen2: a decoder of RMSNorm, grouped-query attention with biased q/k/v projections, RoPE and SwiGLU.
//!
//! Shapes: ids `[B, T]` to hidden states `[B, T, hidden_size]`, after the final norm; the head is `[vocab_size, hidden_size]`.
//! Parameter names, initialisation and arithmetic are those of transformers' `Qwen2ForCausalLM`.
//! Source: Yang et al. 2024, arXiv:2407.10671.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_nn::{
    AttentionShape, Embedding, Forward, GatedMlp, Init, ModulePath, ParamKind, ParamSpec,
    Positions, RmsNorm, Rope, SelfAttention,
};
use tt_tensor::Tensor;

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;
use crate::{Input, Model, ModelConfig};

/// `qwen2.Qwen2ForCausalLM`. Keys are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Qwen2Config {
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
    /// Number of query heads; divides `hidden_size` into an even head size.
    #[schemars(range(min = 1))]
    pub num_attention_heads: usize,
    /// Number of key/value heads; divides `num_attention_heads`.
    #[schemars(range(min = 1))]
    pub num_key_value_heads: usize,
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
    /// Whether the head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Standard deviation of initial weights.
    #[serde(default = "default_initializer_range")]
    #[schemars(range(min = 0.0))]
    pub initializer_range: f64,
    /// Whether layers from `max_window_layers` on look back `sliding_window` positions only.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Positions a query looks back, itself included, in windowed layers.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// First layer that is windowed, if windows are used.
    #[serde(default)]
    pub max_window_layers: usize,
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

impl ModelConfig for Qwen2Config {
    fn from_hf(config: &Value) -> Result<Self> {
        let hf = HfConfig(config);
        let heads = hf.require("num_attention_heads")?;
        if let Some(act) = hf.get::<String>("hidden_act")?.filter(|act| act != "silu") {
            let why = format!("`hidden_act`: `{act}` is not supported by this model");
            return Err(Error::HfConfig(why));
        }
        if let Some(p) = hf.get::<f64>("attention_dropout")?.filter(|p| *p != 0.0) {
            let why = format!("`attention_dropout`: {p} is not supported, only 0");
            return Err(Error::HfConfig(why));
        }
        let num_hidden_layers = hf.require("num_hidden_layers")?;
        let use_sliding_window = hf.get("use_sliding_window")?.unwrap_or(false);
        let mut max_window_layers = hf.get("max_window_layers")?.unwrap_or(28);
        if let Some(types) = hf.get::<Vec<String>>("layer_types")? {
            let first = first_windowed(&types, num_hidden_layers, use_sliding_window)?;
            if use_sliding_window {
                max_window_layers = first;
            }
        }
        Ok(Self {
            vocab_size: hf.require("vocab_size")?,
            hidden_size: hf.require("hidden_size")?,
            intermediate_size: hf.require("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: hf.get("num_key_value_heads")?.unwrap_or(heads),
            max_position_embeddings: hf.get("max_position_embeddings")?.unwrap_or(32_768),
            rms_norm_eps: hf.get("rms_norm_eps")?.unwrap_or(default_rms_norm_eps()),
            rope_theta: hf.rope_theta()?.unwrap_or(default_rope_theta()),
            tie_word_embeddings: hf.get("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: hf
                .get("initializer_range")?
                .unwrap_or(default_initializer_range()),
            use_sliding_window,
            sliding_window: hf.get("sliding_window")?,
            max_window_layers,
            hidden_dropout: 0.0,
        })
    }

    fn with_training_options(self, ours: &Self) -> Self {
        Self {
            hidden_dropout: ours.hidden_dropout,
            ..self
        }
    }

    fn build(self) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Qwen2ForCausalLM::new(self)?))
    }
}

/// The `max_window_layers` that `layer_types` of transformers 5 says: windows from some layer on. Errors: any
/// other pattern, which Qwen2's own rule cannot make.
fn first_windowed(types: &[String], layers: usize, windows: bool) -> Result<usize> {
    let fail = |why: String| Err(Error::HfConfig(format!("`layer_types`: {why}")));
    if types.len() != layers {
        return fail(format!("{} entries for {layers} layers", types.len()));
    }
    let full = types.iter().take_while(|t| *t == "full_attention").count();
    match types[full..].iter().find(|t| *t != "sliding_attention") {
        Some(other) => fail(format!("`{other}` after a windowed layer is not supported")),
        None if full < layers && !windows => {
            fail("windowed layers, but `use_sliding_window` is false".to_owned())
        }
        None => Ok(full),
    }
}

impl Qwen2Config {
    fn check(&self) -> Result<()> {
        let fail = |key, why: String| Err(Error::Config { key, why });
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if heads == 0 || hidden % heads != 0 || (hidden / heads) % 2 != 0 {
            let why = format!("{heads} heads do not divide hidden_size {hidden} into even parts");
            return fail("num_attention_heads", why);
        }
        let kv_heads = self.num_key_value_heads;
        if kv_heads == 0 || heads % kv_heads != 0 {
            let why = format!("{kv_heads} does not divide num_attention_heads {heads}");
            return fail("num_key_value_heads", why);
        }
        if self.use_sliding_window && self.sliding_window.is_none_or(|window| window == 0) {
            let why = "use_sliding_window needs a window of at least 1".to_string();
            return fail("sliding_window", why);
        }
        if !(0.0..1.0).contains(&self.hidden_dropout) {
            let why = format!("{} is not in [0, 1)", self.hidden_dropout);
            return fail("hidden_dropout", why);
        }
        Ok(())
    }
}

/// The model; see the module.
pub struct Qwen2ForCausalLM {
    config: Qwen2Config,
    embed_tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    rope: Rope,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    dropout: f32,
}

impl Qwen2ForCausalLM {
    /// Error: sizes that do not fit each other.
    pub fn new(config: Qwen2Config) -> Result<Self> {
        config.check()?;
        let root = ModulePath::root().join("model");
        let std = config.initializer_range as f32;
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let head_dim = hidden / config.num_attention_heads;
        let block = |layer: usize| {
            let path = root.join(format_args!("layers.{layer}"));
            let windowed = config.use_sliding_window && layer >= config.max_window_layers;
            let shape = AttentionShape {
                hidden,
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim,
                qkv_bias: true,
                window: config.sliding_window.filter(|_| windowed),
                init_std: std,
            };
            let mlp = path.join("mlp");
            Block {
                input_layernorm: RmsNorm::new(path.join("input_layernorm"), hidden, eps),
                self_attn: SelfAttention::new(path.join("self_attn"), &shape),
                post_attention_layernorm: RmsNorm::new(
                    path.join("post_attention_layernorm"),
                    hidden,
                    eps,
                ),
                mlp: GatedMlp::new(mlp, hidden, config.intermediate_size, std),
                dropout: config.hidden_dropout as f32,
                path,
            }
        };
        Ok(Self {
            embed_tokens: Embedding::new(root.join("embed_tokens"), config.vocab_size, hidden, std),
            blocks: (0..config.num_hidden_layers).map(block).collect(),
            norm: RmsNorm::new(root.join("norm"), hidden, eps),
            rope: Rope::new(head_dim, config.rope_theta, config.max_position_embeddings),
            config,
        })
    }
}

impl Block {
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
        fwd.module(&self.path, "Qwen2DecoderLayer", x, move |fwd, x| {
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

impl Model for Qwen2ForCausalLM {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = self.embed_tokens.params();
        params.extend(self.blocks.iter().flat_map(Block::params));
        params.extend(self.norm.params());
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
        let mut x = self.embed_tokens.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        for block in &self.blocks {
            x = block.forward(fwd, &x, &self.rope, &input.positions)?;
        }
        Ok(self.norm.forward(fwd, &x)?)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(match self.config.tie_word_embeddings {
            true => self.embed_tokens.weight(fwd)?,
            false => fwd.param(&ModulePath::root(), "lm_head.weight")?,
        })
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
        let c = &self.config;
        json!({
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "hidden_size": c.hidden_size,
            "initializer_range": c.initializer_range,
            "intermediate_size": c.intermediate_size,
            "max_position_embeddings": c.max_position_embeddings,
            "max_window_layers": c.max_window_layers,
            "model_type": "qwen2",
            "num_attention_heads": c.num_attention_heads,
            "num_hidden_layers": c.num_hidden_layers,
            "num_key_value_heads": c.num_key_value_heads,
            "rms_norm_eps": c.rms_norm_eps,
            "rope_theta": c.rope_theta,
            // A number even without windows: readers other than transformers demand one.
            "sliding_window": c.sliding_window.unwrap_or(c.max_position_embeddings),
            "tie_word_embeddings": c.tie_word_embeddings,
            "torch_dtype": "float32",
            "use_sliding_window": c.use_sliding_window,
            "vocab_size": c.vocab_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(extra: Value) -> Value {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "sliding_window": 4,
        });
        let (Value::Object(all), Value::Object(extra)) = (&mut config, extra) else {
            unreachable!("both are objects")
        };
        all.extend(extra);
        config
    }

    #[test]
    fn layer_types_say_where_windows_begin() {
        let types = json!({
            "use_sliding_window": true, "max_window_layers": 0,
            "layer_types": ["full_attention", "sliding_attention"],
        });
        let read = Qwen2Config::from_hf(&config(types)).unwrap();
        assert_eq!((read.max_window_layers, read.use_sliding_window), (1, true));
    }

    #[test]
    fn what_would_change_the_numbers_unseen_is_refused() {
        let refused = [
            (
                json!({"layer_types": ["sliding_attention", "full_attention"]}),
                "layer_types",
            ),
            (
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "layer_types",
            ),
            (json!({"layer_types": ["full_attention"]}), "layer_types"),
            (json!({"hidden_act": "gelu"}), "hidden_act"),
            (json!({"attention_dropout": 0.1}), "attention_dropout"),
            (
                json!({"rope_scaling": {"type": "yarn", "factor": 2.0}}),
                "rope_scaling",
            ),
            (json!({"vocab_size": "many"}), "vocab_size"),
        ];
        for (extra, key) in refused {
            let message = Qwen2Config::from_hf(&config(extra))
                .unwrap_err()
                .to_string();
            assert!(message.contains(key), "{message}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_name_their_key() {
        let mut fits = Qwen2Config::from_hf(&config(json!({}))).unwrap();
        fits.num_attention_heads = 3;
        let Err(Error::Config { key, .. }) = Qwen2ForCausalLM::new(fits) else {
            panic!("3 heads do not divide 8")
        };
        assert_eq!(key, "num_attention_heads");
    }
}
