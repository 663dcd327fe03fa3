//! `cargo run --release -p custom-kernel -- +model=feed_forward +trainer=lm device=tpu`
//!
//! A TPU kernel of one's own in a model of one's own: feed-forward blocks whose activation, `gelu(x + bias)`, is one
//! operation ([`bias_gelu()`]). It runs on the CPU too, in `plan`, with remat, and in either `device.mode`.
//! `docs/tpu-kernels.md` is the tutorial.

mod bias_gelu;

use std::{process::ExitCode, sync::Arc};

use bias_gelu::bias_gelu;
use tpu_train::models::{Input, Model, ModelConfig, Result, entry};
use tpu_train::nn::*;
use tpu_train::{App, tensor::Tensor};

/// The group `model`.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_layers: usize,
}

#[derive(Clone)]
struct Mlp {
    path: ModulePath,
    up: Linear,
    down: Linear,
    width: usize,
}

impl Mlp {
    fn params(&self) -> Vec<ParamSpec> {
        let bias = ParamSpec {
            path: self.path.join("bias").to_string(),
            shape: vec![self.width],
            init: Init::Zeros,
            kind: ParamKind::Vector,
        };
        [self.up.params(), vec![bias], self.down.params()].concat()
    }

    fn forward(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        let this = self.clone();
        Ok(fwd.module(&self.path, "Mlp", x, move |fwd, x| {
            let bias = fwd.param(&this.path, "bias")?;
            let y = bias_gelu(&this.up.forward(fwd, x)?, &bias)?; // [B, T, width]
            Ok(x.add(&this.down.forward(fwd, &y)?)?)
        })?)
    }
}

struct FeedForward {
    config: Config,
    embedding: Embedding,
    layers: Vec<Mlp>,
}

#[rustfmt::skip] // short ones in a line each
impl Model for FeedForward {
    fn params(&self) -> Vec<ParamSpec> {
        let of_layers = self.layers.iter().flat_map(Mlp::params);
        self.embedding.params().into_iter().chain(of_layers).collect()
    }
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let x = self.embedding.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        self.layers.iter().try_fold(x, |x, layer| layer.forward(fwd, &x))
    }
    fn head(&self, fwd: &Forward) -> Result<Tensor> { Ok(self.embedding.weight(fwd)?) } // [vocab, hidden], tied
    fn blocks(&self) -> Vec<ModulePath> { self.layers.iter().map(|layer| layer.path.clone()).collect() }
    fn vocab_size(&self) -> usize { self.config.vocab_size }
    fn max_positions(&self) -> usize { 1024 }
    fn hf_config(&self) -> serde_json::Value { serde_json::json!(self.config) }
}

impl ModelConfig for Config {
    fn build(self) -> Result<Arc<dyn Model>> {
        let (root, hidden) = (ModulePath::root(), self.hidden_size);
        let layer = |index| {
            let (path, width) = (root.join("layers").join(index), 4 * hidden);
            Mlp {
                up: Linear::new(path.join("up"), hidden, width),
                down: Linear::new(path.join("down"), width, hidden),
                path,
                width,
            }
        };
        Ok(Arc::new(FeedForward {
            embedding: Embedding::new(root.join("embedding"), self.vocab_size, hidden, 0.02),
            layers: (0..self.num_layers).map(layer).collect(),
            config: self,
        }))
    }
}

fn main() -> ExitCode {
    const YAML: &str = "{type: feed_forward.FeedForward, pretrained_url: null,
      vocab_size: '${data.tokenizer.vocab_size}', hidden_size: 64, num_layers: 2}";
    let about = "feed-forward blocks with a kernel of their own";
    App::new()
        .with_model(entry::<Config>("feed_forward.FeedForward", about))
        .with_configs(&[("model/feed_forward.yaml", YAML)])
        .run(std::env::args_os().skip(1))
}
