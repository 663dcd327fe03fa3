//! BERT with its head for masked language modelling: each token sees all tokens of its segment, in both directions.
//!
//! Shapes: ids `[B, T]` to hidden states `[B, T, hidden]`. [`Model::encode`] gives those after the last block,
//! [`Model::hidden_states`] the same after the head's transform, where the decoder (the word embeddings and a bias) takes
//! them. The field `token_type_ids` u32 `[B, T]` is looked at if the batch has it; else all are 0. LayerNorm comes after each
//! residual sum, so the residual stream is what it gives, in f32.
//! Names, initial weights and arithmetic are those of transformers' `BertForMaskedLM`.
//! Source: Devlin et al. 2018, arXiv:1810.04805.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_nn::{
    Activation, AttentionMask, AttentionOptions, Embedding, Forward, Init, LayerNorm, Linear,
    ModulePath, ParamKind, ParamSpec, PositionEmbedding, Positions, attend,
};
use tt_tensor::{Tensor, fused};

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;
use crate::{Input, Model, ModelConfig, TensorNames};

const MODEL_TYPE: &str = "bert";
const CLASS: &str = "BertForMaskedLM";

/// `bert.BertForMaskedLM`. Keys are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BertConfig {
    /// Number of tokens the embedding knows; at least the tokenizer's.
    #[schemars(range(min = 1))]
    pub vocab_size: usize,
    /// Kinds of segments that a token may say it is of (`token_type_ids`): 2 for pairs of sentences.
    #[serde(default = "default_type_vocab_size")]
    #[schemars(range(min = 1))]
    pub type_vocab_size: usize,
    /// Longest sequence, in tokens.
    #[schemars(range(min = 1))]
    pub max_position_embeddings: usize,
    /// Width of the residual stream.
    #[schemars(range(min = 1))]
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    #[schemars(range(min = 1))]
    pub intermediate_size: usize,
    /// Number of blocks.
    #[schemars(range(min = 1))]
    pub num_hidden_layers: usize,
    /// Number of attention heads; divides `hidden_size`.
    #[schemars(range(min = 1))]
    pub num_attention_heads: usize,
    /// Between the layers of the feed-forward, and in the head: `gelu` (by the error function), `gelu_new`, `relu` or `silu`.
    #[serde(default = "default_hidden_act")]
    pub hidden_act: String,
    /// Added to the variance in LayerNorm.
    #[serde(default = "default_layer_norm_eps")]
    #[schemars(range(min = 0.0))]
    pub layer_norm_eps: f64,
    /// Standard deviation of initial weights.
    #[serde(default = "default_initializer_range")]
    #[schemars(range(min = 0.0))]
    pub initializer_range: f64,
    /// Dropout of the embeddings and of each block's two outputs before they join the residual stream, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub hidden_dropout_prob: f64,
    /// Dropout of attention's probabilities, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub attention_probs_dropout_prob: f64,
}

fn default_type_vocab_size() -> usize {
    2
}

fn default_hidden_act() -> String {
    "gelu".to_owned()
}

fn default_layer_norm_eps() -> f64 {
    1e-12
}

fn default_initializer_range() -> f64 {
    0.02
}

impl BertConfig {
    fn activation(&self) -> Result<Activation> {
        Activation::from_hf(&self.hidden_act).ok_or_else(|| Error::Config {
            key: "hidden_act",
            why: format!("`{}` is not supported by this model", self.hidden_act),
        })
    }

    /// Error: sizes that do not fit each other.
    fn check(&self) -> Result<()> {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            let why = format!("{heads} heads do not divide hidden_size {hidden}");
            let key = "num_attention_heads";
            return Err(Error::Config { key, why });
        }
        for (key, p) in [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            (
                "attention_probs_dropout_prob",
                self.attention_probs_dropout_prob,
            ),
        ] {
            if !(0.0..1.0).contains(&p) {
                let why = format!("{p} is not in [0, 1)");
                return Err(Error::Config { key, why });
            }
        }
        Ok(())
    }
}

/// What would make other numbers of the same weights, if it is not what we compute.
fn refuse_other_kinds(hf: &HfConfig<'_>) -> Result<()> {
    let fail = |why: String| Err(Error::HfConfig(why));
    match hf.get::<String>("model_type")? {
        Some(other) if other != MODEL_TYPE => {
            return fail(format!(
                "`model_type`: `{other}`, this model is `{MODEL_TYPE}`"
            ));
        }
        _ => {}
    }
    if let Some(kind) = hf.get::<String>("position_embedding_type")?
        && kind != "absolute"
    {
        return fail(format!(
            "`position_embedding_type`: `{kind}` is not supported, only `absolute`"
        ));
    }
    for (key, expected) in [
        ("is_decoder", false),
        ("add_cross_attention", false),
        ("tie_word_embeddings", true),
    ] {
        if hf.get(key)?.is_some_and(|given: bool| given != expected) {
            return fail(format!(
                "`{key}`: {} is not supported, only {expected}",
                !expected
            ));
        }
    }
    Ok(())
}

impl ModelConfig for BertConfig {
    fn from_hf(config: &Value) -> Result<Self> {
        let hf = HfConfig(config);
        refuse_other_kinds(&hf)?;
        Ok(Self {
            vocab_size: hf.require("vocab_size")?,
            type_vocab_size: hf
                .get("type_vocab_size")?
                .unwrap_or(default_type_vocab_size()),
            max_position_embeddings: hf.get("max_position_embeddings")?.unwrap_or(512),
            hidden_size: hf.require("hidden_size")?,
            intermediate_size: hf.require("intermediate_size")?,
            num_hidden_layers: hf.require("num_hidden_layers")?,
            num_attention_heads: hf.require("num_attention_heads")?,
            hidden_act: hf.get("hidden_act")?.unwrap_or(default_hidden_act()),
            layer_norm_eps: hf
                .get("layer_norm_eps")?
                .unwrap_or(default_layer_norm_eps()),
            initializer_range: hf
                .get("initializer_range")?
                .unwrap_or(default_initializer_range()),
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
        })
    }

    fn with_training_options(self, ours: &Self) -> Self {
        Self {
            hidden_dropout_prob: ours.hidden_dropout_prob,
            attention_probs_dropout_prob: ours.attention_probs_dropout_prob,
            ..self
        }
    }

    fn build(self) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(BertForMaskedLM::new(self)?))
    }
}

/// BERT, with a head that names hidden tokens.
pub struct BertForMaskedLM {
    config: BertConfig,
    words: Embedding,
    types: Embedding,
    positions: PositionEmbedding,
    norm: LayerNorm,
    blocks: Vec<Block>,
    embeddings: ModulePath,
    act: Activation,
    /// Of the head.
    transform: (Linear, LayerNorm),
    head: ModulePath,
}

/// A linear layer whose result joins the residual stream, and the norm of the sum.
#[derive(Clone)]
struct Joined {
    path: ModulePath,
    dense: Linear,
    norm: LayerNorm,
    dropout: f32,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    attention: ModulePath,
    head_dim: usize,
    options: AttentionOptions,
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Joined,
    intermediate: Linear,
    act: Activation,
    output: Joined,
}

impl BertForMaskedLM {
    /// Error: sizes that do not fit each other.
    pub fn new(config: BertConfig) -> Result<Self> {
        config.check()?;
        let act = config.activation()?;
        let (hidden, std) = (config.hidden_size, config.initializer_range as f32);
        let root = ModulePath::root().join("bert");
        let embeddings = root.join("embeddings");
        let table = |name, rows| Embedding::new(embeddings.join(name), rows, hidden, std);
        let positions = PositionEmbedding::new(
            embeddings.join("position_embeddings"),
            config.max_position_embeddings,
            hidden,
            std,
        );
        let norm = |path: &ModulePath| {
            LayerNorm::new(path.join("LayerNorm"), hidden, config.layer_norm_eps)
        };
        let head = ModulePath::root().join("cls.predictions");
        let transform = head.join("transform");
        let dense = linear(transform.join("dense"), (hidden, hidden), std);
        let layers = 0..config.num_hidden_layers;
        let block = |layer| Block::new(root.join("encoder.layer").join(layer), &config, act);
        Ok(Self {
            words: table("word_embeddings", config.vocab_size),
            types: table("token_type_embeddings", config.type_vocab_size),
            positions,
            norm: norm(&embeddings),
            blocks: layers.map(block).collect(),
            transform: (dense, norm(&transform)),
            embeddings,
            act,
            head,
            config,
        })
    }

    /// What it was built from.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Words, types and positions, added and normalised.
    fn embed(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let ids = &input.input_ids;
        let types = match input.field("token_type_ids") {
            Some(types) => types.clone(),
            None => {
                let zeros = vec![0u32; ids.elem_count()];
                Tensor::from_slice(&zeros, ids.shape().clone(), ids.device())?
            }
        };
        let x = self.words.forward(fwd, ids)?; // [B, T, hidden]
        let x = x.add(&self.types.forward(fwd, &types)?)?;
        let x = x.add(&self.positions.forward(fwd, &input.positions)?)?;
        let x = self.norm.forward_f32(fwd, &x)?;
        let p = self.config.hidden_dropout_prob as f32;
        Ok(fwd.dropout(&self.embeddings, x, p)?)
    }
}

/// With a bias, as all of BERT's are.
fn linear(path: ModulePath, (inputs, outputs): (usize, usize), std: f32) -> Linear {
    Linear::new(path, inputs, outputs).with_std(std).with_bias()
}

impl Joined {
    fn new(path: ModulePath, inputs: usize, config: &BertConfig) -> Self {
        let (hidden, std) = (config.hidden_size, config.initializer_range as f32);
        Self {
            dense: linear(path.join("dense"), (inputs, hidden), std),
            norm: LayerNorm::new(path.join("LayerNorm"), hidden, config.layer_norm_eps),
            dropout: config.hidden_dropout_prob as f32,
            path,
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        [self.dense.params(), self.norm.params()].concat()
    }

    /// `x` `[B, T, hidden]` with what the layer makes of `y` `[B, T, inputs]`, f32.
    fn forward(&self, fwd: &Forward, x: &Tensor, y: &Tensor) -> tt_nn::Result<Tensor> {
        let y = self.dense.forward(fwd, y)?;
        let y = fwd.dropout(&self.path, y, self.dropout)?;
        self.norm.forward_f32(fwd, &x.add(&y)?)
    }
}

impl Block {
    fn new(path: ModulePath, config: &BertConfig, act: Activation) -> Self {
        let (hidden, std) = (config.hidden_size, config.initializer_range as f32);
        let attention = path.join("attention.self");
        let projection = |name| linear(attention.join(name), (hidden, hidden), std);
        let wide = config.intermediate_size;
        Self {
            head_dim: hidden / config.num_attention_heads,
            options: AttentionOptions {
                dropout: config.attention_probs_dropout_prob as f32,
                ..AttentionMask::BIDIRECTIONAL.into()
            },
            query: projection("query"),
            key: projection("key"),
            value: projection("value"),
            attention_output: Joined::new(path.join("attention.output"), hidden, config),
            intermediate: linear(path.join("intermediate.dense"), (hidden, wide), std),
            act,
            output: Joined::new(path.join("output"), wide, config),
            attention,
            path,
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        let projections = [&self.query, &self.key, &self.value];
        let mut params: Vec<_> = projections.into_iter().flat_map(Linear::params).collect();
        params.extend(self.attention_output.params());
        params.extend(self.intermediate.params());
        params.extend(self.output.params());
        params
    }

    /// `x` `[B, T, hidden]` to the same shape, f32.
    fn forward(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let (this, positions) = (self.clone(), positions.clone());
        fwd.module(&self.path, "BertLayer", x, move |fwd, x| {
            let y = this.attention(fwd, x, &positions)?;
            let x = this.attention_output.forward(fwd, x, &y)?;
            this.feed_forward(fwd, &x)
        })
    }

    /// What each token takes from those of its segment, `[B, T, hidden]`.
    fn attention(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let [b, t, _] = x.dims_of("bert attention")?;
        let x = &x.to_dtype(fwd.precision().dtype())?; // once for the three
        let heads = |linear: &Linear| -> tt_nn::Result<Tensor> {
            let y = linear.forward(fwd, x)?;
            let heads = y.dims()[2] / self.head_dim;
            Ok(y.reshape((b, t, heads, self.head_dim))?) // [B, T, H, D]
        };
        let qkv = [heads(&self.query)?, heads(&self.key)?, heads(&self.value)?];
        let y = attend(fwd, &self.attention, qkv, positions, self.options)?; // [B, T, H, D]
        let width = y.dims()[2] * self.head_dim;
        Ok(y.reshape((b, t, width))?)
    }

    /// A module of its own, so that it can be recomputed without attention.
    fn feed_forward(&self, fwd: &Forward, x: &Tensor) -> tt_nn::Result<Tensor> {
        let this = self.clone();
        let path = self.path.join("feed_forward");
        fwd.module(&path, "FeedForward", x, move |fwd, x| {
            let y = this.act.apply(&this.intermediate.forward(fwd, x)?)?;
            this.output.forward(fwd, x, &y)
        })
    }
}

impl Model for BertForMaskedLM {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = [self.words.params(), self.positions.params()].concat();
        params.extend([self.types.params(), self.norm.params()].concat());
        params.extend(self.blocks.iter().flat_map(Block::params));
        let (dense, norm) = &self.transform;
        params.extend([dense.params(), norm.params()].concat());
        params.push(ParamSpec {
            path: self.head.join("bias").to_string(),
            shape: vec![self.config.vocab_size],
            init: Init::Zeros,
            kind: ParamKind::Vector,
        });
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let x = self.encode(fwd, input)?;
        let (dense, norm) = &self.transform;
        let x = self.act.apply(&dense.forward(fwd, &x)?)?;
        Ok(norm.forward(fwd, &x)?)
    }

    fn encode(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let mut x = self.embed(fwd, input)?; // [B, T, hidden]
        for block in &self.blocks {
            x = block.forward(fwd, &x, &input.positions)?;
        }
        Ok(x)
    }

    fn head(&self, _: &Forward) -> Result<Tensor> {
        Err(Error::MoreThanAWeight)
    }

    fn output(&self, fwd: &Forward) -> Result<fused::Head> {
        Ok(fused::Head {
            weight: self.words.weight(fwd)?,
            bias: Some(fwd.param(&self.head, "bias")?),
        })
    }

    fn is_causal(&self) -> bool {
        false
    }

    /// Published files call LayerNorm's parameters `gamma` and `beta`, hold the tied decoder a second time, and have what only
    /// other objectives look at: the pooler, whether a sentence is the next one. A `BertModel` has no `bert.` in its names, and
    /// no head.
    fn tensor_names(&self) -> TensorNames {
        TensorNames::default()
            .with_optional_prefix("bert.")
            .with_head(&["cls.predictions.*"])
            .with_former(|name| {
                let scale = name.strip_suffix("LayerNorm.weight");
                let shift = name.strip_suffix("LayerNorm.bias");
                match (scale, shift) {
                    (Some(module), _) => Some(format!("{module}LayerNorm.gamma")),
                    (_, Some(module)) => Some(format!("{module}LayerNorm.beta")),
                    _ => None,
                }
            })
            .with_copies(&[
                (
                    "cls.predictions.decoder.weight",
                    "bert.embeddings.word_embeddings.weight",
                ),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            ])
            .ignoring(&["bert.embeddings.position_ids", "embeddings.position_ids"])
            .lacking(&["bert.pooler.*", "pooler.*", "cls.seq_relationship.*"])
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
        let mut config = json!(self.config);
        for (key, value) in [
            ("architectures", json!([CLASS])),
            ("model_type", json!(MODEL_TYPE)),
            ("position_embedding_type", json!("absolute")),
            ("tie_word_embeddings", json!(true)),
            ("torch_dtype", json!("float32")),
        ] {
            config[key] = value;
        }
        if let Value::Object(map) = &mut config {
            map.sort_keys();
        }
        config
    }
}
