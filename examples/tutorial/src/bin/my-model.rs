//! `my-model +model=bigram +trainer=lm`: predicts a token from the one before it, with no attention.

use std::{process::ExitCode, sync::Arc};

use tpu_train::models::{Error, Input, Model, ModelConfig, Result, entry};
use tpu_train::nn::{Embedding, Forward, GatedMlp, ModulePath, ParamSpec};
use tpu_train::{App, tensor::Tensor};

/// The group `model`.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_layers: usize,
}

struct Bigram {
    config: Config,
    embedding: Embedding,
    layers: Vec<GatedMlp>,
}

#[rustfmt::skip] // short ones in a line each
impl Model for Bigram {
    fn params(&self) -> Vec<ParamSpec> {
        let of_layers = self.layers.iter().flat_map(GatedMlp::params);
        self.embedding.params().into_iter().chain(of_layers).collect()
    }
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let x = self.embedding.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        self.layers.iter().try_fold(x, |x, layer| Ok(x.add(&layer.forward(fwd, &x)?)?))
    }
    fn head(&self, fwd: &Forward) -> Result<Tensor> { Ok(self.embedding.weight(fwd)?) } // [vocab, hidden], tied
    fn blocks(&self) -> Vec<ModulePath> { (0..self.layers.len()).map(layer_path).collect() }
    fn vocab_size(&self) -> usize { self.config.vocab_size }
    fn max_positions(&self) -> usize { 1024 }
    fn hf_config(&self) -> serde_json::Value { serde_json::json!(self.config) }
}

fn layer_path(index: usize) -> ModulePath {
    ModulePath::root().join("layers").join(index)
}

impl ModelConfig for Config {
    fn build(self) -> Result<Arc<dyn Model>> {
        let (vocab, hidden) = (self.vocab_size, self.hidden_size);
        if self.num_layers > 8 {
            let (key, why) = ("num_layers", "a bigram needs no more than 8".to_owned());
            return Err(Error::Config { key, why });
        }
        let layer = |index| GatedMlp::new(layer_path(index), hidden, 2 * hidden, 0.02);
        let layers = (0..self.num_layers).map(layer).collect();
        let embedding = Embedding::new(ModulePath::root().join("embedding"), vocab, hidden, 0.02);
        Ok(Arc::new(Bigram {
            config: self,
            embedding,
            layers,
        }))
    }
}

fn main() -> ExitCode {
    let entry = entry::<Config>("bigram.Bigram", "a token from the one before it");
    let app = App::new().with_model(entry);
    app.with_configs(&[("model/bigram.yaml", include_str!("bigram.yaml"))])
        .run(std::env::args_os().skip(1))
}
