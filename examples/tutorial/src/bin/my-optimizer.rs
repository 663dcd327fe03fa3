//! `my-optimizer +model=qwen2 +trainer=lm trainer/optimizer=heavy`: momentum, in steps of one root mean square.

use std::{process::ExitCode, sync::Arc};

use tpu_train::optimizers::{BuildOptimizer, LoadSlot, Optimizer, Result, Slot, StepContext};
use tpu_train::tensor::{Parameter, Tensor};
use tpu_train::{App, Entry};

/// `trainer.optimizer.kwargs`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Peak learning rate, which the schedule multiplies: how far weights move in a step.
    lr: f64,
    /// Share of the momentum that a step keeps.
    #[schemars(range(min = 0.0, max = 0.9999))]
    beta: f64,
}

struct Heavy {
    config: Config,
    steps: u64,
    means: Vec<(Arc<Parameter>, Tensor)>,
}

#[rustfmt::skip] // short ones in a line each
impl Optimizer for Heavy {
    fn lr(&self) -> f64 { self.config.lr }
    fn steps(&self) -> u64 { self.steps }
    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.steps += 1;
        for (weight, mean) in &mut self.means {
            let Some(grad) = weight.take_grad() else { continue }; // the loss did not depend on it
            let grad = grad.mul(&context.grad_scale)?; // now a mean over the step's tokens, clipped
            *mean = mean.affine(self.config.beta, 0.0)?.add(&grad.affine(1.0 - self.config.beta, 0.0)?)?;
            let size = mean.sqr()?.sum_all()?.affine(1.0 / mean.elem_count() as f64, 1e-30)?.sqrt()?; // [], not read
            weight.set(weight.value().sub(&mean.div(&size)?.affine(context.lr, 0.0)?)?)?;
        }
        Ok(())
    }
    fn slots(&self) -> Vec<Slot> {
        self.means.iter().cloned().map(|(weight, value)| Slot {
            parameter: weight.path().to_owned(), name: "mean", shard: weight.shard().clone(), value,
        }).collect()
    }
    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.steps = steps;
        for (weight, mean) in &mut self.means { *mean = load(weight.path(), "mean", weight.shard())?; }
        Ok(())
    }
}

#[rustfmt::skip]
fn main() -> ExitCode {
    let build: BuildOptimizer = |kwargs| {
        let config: Config = kwargs.extract()?; // errors about keys: before there are weights
        Ok(Box::new(|params| {
            let mut means = Vec::new();
            for (_, weight) in params.iter().filter(|(_, weight)| weight.is_trainable()) {
                means.push((weight.clone(), Tensor::zeros(weight.shape(), weight.value().device())?));
            }
            Ok(Box::new(Heavy { config, steps: 0, means }))
        }))
    };
    let entry = Entry::new::<Config>("heavy.Heavy", "momentum in steps of one size", build);
    const YAML: &str = "{type: heavy.Heavy, kwargs: {lr: '${lr}', beta: 0.9}}";
    let app = App::new().with_optimizer(entry).with_configs(&[("trainer/optimizer/heavy.yaml", YAML)]);
    app.run(std::env::args_os().skip(1))
}
