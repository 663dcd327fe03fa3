//! A model into which faults can be planted.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tpu_train::App;
use tpu_train::models::{Input, Model, ModelConfig, Result, entry};
use tpu_train::nn::*;
use tpu_train::tensor::Tensor;

/// The program with the model, as `+model=gates`.
pub fn app() -> App {
    App::new()
        .with_model(entry::<Config>(
            "gates.Gates",
            "blocks of which one may be faulty",
        ))
        .with_configs(&[("model/gates.yaml", GATES_YAML)])
}

/// A model of which one block may be faulty: as a kernel is that is wrong in one place.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    vocab_size: usize,
    #[serde(default)]
    faulty_layer: Option<usize>,
    /// Of the threads that are ranks; null: all there are.
    #[serde(default)]
    faulty_rank: Option<usize>,
    #[serde(default)]
    fault: Fault,
}

#[derive(
    Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
enum Fault {
    /// The gate's output is a thousandth too large.
    #[default]
    Forward,
    /// Between modules: what goes into `down` is too large.
    Between,
    /// The gate's input gets half its gradient; the output is right.
    Backward,
    /// The gate's output is NaN.
    Undefined,
    /// The head's weight gets half its gradient.
    Head,
    /// The gate takes three seconds.
    Slow,
}

struct Gates {
    embedding: Embedding,
    blocks: Vec<(ModulePath, Linear, Linear)>,
    config: Config,
}

const WIDTH: usize = 32;

impl ModelConfig for Config {
    fn build(self) -> Result<Arc<dyn Model>> {
        let root = ModulePath::root();
        let block = |layer| {
            let path = root.join("layers").join(layer);
            let linear = |name| Linear::new(path.join(name), WIDTH, WIDTH).with_std(0.2);
            (path.clone(), linear("up"), linear("down"))
        };
        Ok(Arc::new(Gates {
            embedding: Embedding::new(root.join("embedding"), self.vocab_size, WIDTH, 0.02),
            blocks: (0..3).map(block).collect(),
            config: self,
        }))
    }
}

impl Gates {
    /// `x` itself but for the fault.
    fn gate(&self, layer: usize, fwd: &Forward, x: &Tensor, path: &ModulePath) -> Result<Tensor> {
        let fault = self.fault(layer);
        Ok(fwd.module(&path.join("gate"), "Gate", x, move |_, x| {
            Ok(match fault {
                Some(Fault::Forward) => x.affine(1.001, 0.0)?,
                // Half of it is a constant to the gradient.
                Some(Fault::Backward) => x.affine(0.5, 0.0)?.add(&x.detach().affine(0.5, 0.0)?)?,
                Some(Fault::Undefined) => x.affine(f64::NAN, 0.0)?,
                Some(Fault::Slow) => {
                    thread::sleep(Duration::from_secs(3));
                    x.affine(1.0, 0.0)?
                }
                Some(Fault::Between | Fault::Head) | None => x.affine(1.0, 0.0)?,
            })
        })?)
    }

    fn fault(&self, layer: usize) -> Option<Fault> {
        let is_rank = |rank: usize| thread::current().name() == Some(&format!("rank {rank}"));
        let is_here = self.config.faulty_rank.is_none_or(is_rank);
        (is_here && self.config.faulty_layer == Some(layer)).then_some(self.config.fault)
    }
}

impl Model for Gates {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = self.embedding.params();
        for (_, up, down) in &self.blocks {
            params.extend([up.params(), down.params()].concat());
        }
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let mut x = self.embedding.forward(fwd, &input.input_ids)?; // [B, T, WIDTH]
        for (layer, (path, up, down)) in self.blocks.iter().enumerate() {
            let mut y = self.gate(layer, fwd, &up.forward(fwd, &x)?, path)?;
            if self.fault(layer) == Some(Fault::Between) {
                y = y.affine(1.001, 0.0)?;
            }
            x = x.add(&down.forward(fwd, &y)?)?;
        }
        Ok(x)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        let weight = self.embedding.weight(fwd)?;
        if (0..self.blocks.len()).any(|layer| self.fault(layer) == Some(Fault::Head)) {
            let constant = weight.detach().affine(0.5, 0.0)?;
            return Ok(weight.affine(0.5, 0.0)?.add(&constant)?);
        }
        Ok(weight)
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
        serde_json::json!({"architectures": ["Gates"]})
    }
}

const GATES_YAML: &str = "\
type: gates.Gates
vocab_size: ${data.tokenizer.vocab_size}
faulty_layer: null
faulty_rank: null
fault: forward
";
