//! GPT-2 as an outside crate would write it, on what `tt-nn` and `tt-models` give to everybody: learned positions,
//! LayerNorm, `gelu_new`, weights `[in, out]`, a fused projection for attention of its own, a tied head, and the names
//! of published checkpoints.
//!
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; transformers' `GPT2LMHeadModel`.

use std::sync::Arc;

use candle_core::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_models::{Input, Model, ModelConfig, Result, TensorNames};
use tt_nn::{
    Activation, AttentionMask, Embedding, Forward, LayerNorm, Linear, ModulePath, ParamSpec,
    ParamTree, PositionEmbedding, Positions, attend,
};
use tt_tensor::{Device, Seed, Tensor};
use tt_testkit::relative_l2;
use tt_train::load_params;

use crate::check::Check;
use crate::common;

/// Keys of `config.json`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Gpt2Config {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    layer_norm_epsilon: f64,
    initializer_range: f64,
}

struct Gpt2 {
    config: Gpt2Config,
    wte: Embedding,
    wpe: PositionEmbedding,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    ln_1: LayerNorm,
    attention: Attention,
    ln_2: LayerNorm,
    c_fc: Linear,
    c_proj: Linear,
}

#[derive(Clone)]
struct Attention {
    path: ModulePath,
    heads: usize,
    c_attn: Linear,
    c_proj: Linear,
}

impl ModelConfig for Gpt2Config {
    fn build(self) -> Result<Arc<dyn Model>> {
        let root = ModulePath::root().join("transformer");
        let (width, std) = (self.n_embd, self.initializer_range as f32);
        let norm = |path| LayerNorm::new(path, width, self.layer_norm_epsilon);
        let linear = |path, inputs, outputs| {
            let linear = Linear::new(path, inputs, outputs).with_std(std);
            linear.with_bias().with_weight_in_out()
        };
        let block = |layer| {
            let path = root.join("h").join(layer);
            let (attn, mlp) = (path.join("attn"), path.join("mlp"));
            Block {
                ln_1: norm(path.join("ln_1")),
                attention: Attention {
                    heads: self.n_head,
                    c_attn: linear(attn.join("c_attn"), width, 3 * width),
                    c_proj: linear(attn.join("c_proj"), width, width),
                    path: attn,
                },
                ln_2: norm(path.join("ln_2")),
                c_fc: linear(mlp.join("c_fc"), width, 4 * width),
                c_proj: linear(mlp.join("c_proj"), 4 * width, width),
                path,
            }
        };
        Ok(Arc::new(Gpt2 {
            wte: Embedding::new(root.join("wte"), self.vocab_size, width, std),
            wpe: PositionEmbedding::new(root.join("wpe"), self.n_positions, width, std),
            blocks: (0..self.n_layer).map(block).collect(),
            ln_f: norm(root.join("ln_f")),
            config: self,
        }))
    }
}

impl Attention {
    /// `x` `[B, T, width]` to the same shape.
    fn forward(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let [b, t, width] = x.dims_of("attention")?;
        let qkv = self.c_attn.forward(fwd, x)?; // [B, T, 3 width]
        let head_dim = width / self.heads;
        let part = |i| {
            let part = qkv.narrow(2, i * width, width)?;
            part.reshape((b, t, self.heads, head_dim)) // [B, T, H, D]
        };
        let qkv = [part(0)?, part(1)?, part(2)?];
        let y = attend(fwd, &self.path, qkv, positions, AttentionMask::CAUSAL)?;
        self.c_proj.forward(fwd, &y.reshape((b, t, width))?)
    }
}

impl Model for Gpt2 {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = [self.wte.params(), self.wpe.params()].concat();
        for block in &self.blocks {
            params.extend([block.ln_1.params(), block.ln_2.params()].concat());
            let (attn, c_fc, c_proj) = (&block.attention, &block.c_fc, &block.c_proj);
            for linear in [&attn.c_attn, &attn.c_proj, c_fc, c_proj] {
                params.extend(linear.params());
            }
        }
        params.extend(self.ln_f.params());
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let tokens = self.wte.forward(fwd, &input.input_ids)?; // [B, T, width]
        let mut x = tokens.add(&self.wpe.forward(fwd, &input.positions)?)?;
        for block in self.blocks.clone() {
            let (path, positions) = (block.path.clone(), input.positions.clone());
            x = fwd.module(&path, "GPT2Block", &x, move |fwd, x| {
                let y = block.ln_1.forward(fwd, x)?;
                let x = x.add(&block.attention.forward(fwd, &y, &positions)?)?;
                let y = block.c_fc.forward(fwd, &block.ln_2.forward(fwd, &x)?)?;
                let y = block
                    .c_proj
                    .forward(fwd, &Activation::GeluTanh.apply(&y)?)?;
                Ok(x.add(&y)?)
            })?;
        }
        Ok(self.ln_f.forward(fwd, &x)?)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(self.wte.weight(fwd)?)
    }

    /// Published files are of the model without its head, and hold the causal masks.
    fn tensor_names(&self) -> TensorNames {
        TensorNames::default()
            .with_optional_prefix("transformer.")
            .ignoring(&["*.attn.bias", "*.attn.masked_bias"])
            .with_copies(&[("lm_head.weight", "transformer.wte.weight")])
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.path.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_positions(&self) -> usize {
        self.config.n_positions
    }

    fn hf_config(&self) -> Value {
        let mut config = json!(self.config);
        config["architectures"] = json!(["GPT2LMHeadModel"]);
        config["model_type"] = json!("gpt2");
        config
    }
}

fn open() -> Check {
    Check::open_model::<Gpt2Config>("gpt2", Device::Cpu)
}

#[test]
fn golden_gpt2() {
    open().all();
}

/// The case's weights as the files that are published hold them: without the prefix, and with buffers.
fn published(head: impl Fn(&candle_core::Tensor) -> candle_core::Tensor) -> tempfile::TempDir {
    let golden = open().golden.tensors("model");
    let mut tensors: Vec<_> = golden
        .iter()
        .map(|(name, tensor)| {
            let name = name.strip_prefix("transformer.").unwrap();
            (name.to_owned(), tensor.clone())
        })
        .collect();
    let mask = candle_core::Tensor::ones((1, 1, 64, 64), DType::U8, &candle_core::Device::Cpu);
    tensors.push(("h.0.attn.bias".to_owned(), mask.unwrap()));
    let head = head(&golden["transformer.wte.weight"]);
    tensors.push(("lm_head.weight".to_owned(), head));
    let dir = tempfile::tempdir().unwrap();
    let tensors = tensors.into_iter().collect();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn published_names_are_those_of_the_same_parameters() {
    let (check, dir) = (open(), published(Clone::clone));
    let weights = tt_checkpoint::Weights::open(dir.path()).unwrap();
    let loaded = load_params(&*check.model, &weights, Device::Cpu).unwrap();
    let expected = check.base();
    for (spec, parameter) in loaded.iter() {
        let expected = expected.get(&spec.path).unwrap().value();
        let values = [parameter.value(), expected].map(|it| it.to_vec::<f32>().unwrap());
        assert_eq!(relative_l2(&values[0], &values[1]), 0.0, "{}", spec.path);
    }
}

#[test]
fn a_tied_head_that_differs_from_the_embedding_is_refused() {
    let (check, dir) = (open(), published(|head| (head * 2.0).unwrap()));
    let weights = tt_checkpoint::Weights::open(dir.path()).unwrap();
    let refused = load_params(&*check.model, &weights, Device::Cpu)
        .err()
        .unwrap();
    let message = refused.to_string();
    for name in ["`lm_head.weight`", "`wte.weight`"] {
        assert!(message.contains(name), "{message}");
    }
}

/// GPT-2 whose checkpoints have other names than its paths.
struct Renamed(Arc<dyn Model>);

impl Model for Renamed {
    fn params(&self) -> Vec<ParamSpec> {
        self.0.params()
    }
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        self.0.hidden_states(fwd, input)
    }
    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        self.0.head(fwd)
    }
    fn tensor_names(&self) -> TensorNames {
        TensorNames::default().renamed(|path| path.replacen("transformer", "gpt", 1))
    }
    fn blocks(&self) -> Vec<ModulePath> {
        self.0.blocks()
    }
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }
    fn max_positions(&self) -> usize {
        self.0.max_positions()
    }
    fn hf_config(&self) -> Value {
        self.0.hf_config()
    }
}

#[test]
fn checkpoints_of_a_run_have_the_names_that_the_model_gives() {
    let dir = tempfile::tempdir().unwrap();
    let config = Gpt2Config {
        vocab_size: 512,
        n_positions: 128,
        n_embd: 16,
        n_layer: 1,
        n_head: 2,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.02,
    };
    let mut job = common::job(2);
    job.model = Arc::new(Renamed(config.build().unwrap()));
    job.params = ParamTree::init(&job.model.params(), Seed::new(1), Device::Cpu).unwrap();
    job.optimizers = common::optimizers(&job.params, 2);
    let (model, params) = (job.model.clone(), job.params.clone());
    let prepared = job.prepare().unwrap();
    prepared
        .run(dir.path(), common::metrics(dir.path()))
        .unwrap();

    let latest = tt_checkpoint::latest(&dir.path().join("checkpoints")).unwrap();
    let weights = latest.checkpoint.unwrap().model().unwrap();
    assert!(weights.names().all(|name| name.starts_with("gpt.")));
    let loaded = load_params(&*model, &weights, Device::Cpu).unwrap();
    for (spec, trained) in params.iter() {
        let loaded = loaded.get(&spec.path).unwrap().value();
        let values = [loaded, trained.value()].map(|it| it.to_vec::<f32>().unwrap());
        assert_eq!(values[0], values[1], "{}", spec.path);
    }
}
