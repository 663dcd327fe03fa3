//! `cargo run --release -p custom-model -- +model=parallel +trainer=lm`
//!
//! Attention and feed-forward read the same normalised input and are added together, as in GPT-J and PaLM: one norm a
//! block, and two halves that do not wait for each other. Checkpoints, resume, remat and sampling come with the trait.

use std::{process::ExitCode, sync::Arc};

use serde_json::{Value, json};
use tpu_train::models::{Input, Model, ModelConfig, Result, entry};
use tpu_train::nn::*;
use tpu_train::{App, tensor::Tensor};

/// The group `model`. Heads are 32 wide, whatever their number.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
}

/// Modules hold paths and shapes; `Forward` hands out the weights when they are used.
struct Parallel {
    embedding: Embedding,
    blocks: Vec<(ModulePath, RmsNorm, SelfAttention, GatedMlp)>,
    rope: Rope,
    config: Config,
}

impl ModelConfig for Config {
    fn build(self) -> Result<Arc<dyn Model>> {
        let (root, hidden) = (ModulePath::root(), self.hidden_size);
        let shape = AttentionShape::new(hidden, hidden / 32, 32);
        let block = |layer| {
            let path = root.join("layers").join(layer);
            let norm = RmsNorm::new(path.join("norm"), hidden, 1e-6);
            let attention = SelfAttention::new(path.join("attention"), &shape);
            let mlp = GatedMlp::new(path.join("mlp"), hidden, 3 * hidden, 0.02);
            (path, norm, attention, mlp)
        };
        Ok(Arc::new(Parallel {
            embedding: Embedding::new(root.join("embedding"), self.vocab_size, hidden, 0.02),
            blocks: (0..self.num_hidden_layers).map(block).collect(),
            rope: Rope::new(32, 10_000.0, 1024),
            config: self,
        }))
    }
}

impl Model for Parallel {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = self.embedding.params();
        for (_, norm, attention, mlp) in &self.blocks {
            params.extend([norm.params(), attention.params(), mlp.params()].concat());
        }
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let mut x = self.embedding.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        for (path, norm, attention, mlp) in self.blocks.clone() {
            let (rope, positions) = (self.rope.clone(), input.positions.clone());
            x = fwd.module(&path, "ParallelBlock", &x, move |fwd, x| {
                let y = norm.forward(fwd, x)?;
                let attended = attention.forward(fwd, &y, &rope, &positions)?;
                Ok(x.add(&attended)?.add(&mlp.forward(fwd, &y)?)?)
            })?;
        }
        Ok(x)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(self.embedding.weight(fwd)?) // [vocab, hidden], tied
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.0.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_positions(&self) -> usize {
        1024
    }

    fn hf_config(&self) -> Value {
        let mut config = json!(self.config);
        config["architectures"] = json!(["ParallelLM"]);
        config
    }
}

fn main() -> ExitCode {
    App::new()
        .with_model(entry::<Config>("parallel.ParallelLM", "parallel blocks"))
        .with_configs(&[("model/parallel.yaml", include_str!("parallel.yaml"))])
        .run(std::env::args_os().skip(1))
}
