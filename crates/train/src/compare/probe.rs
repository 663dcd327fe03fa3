//! One step of a run, every tensor of it read back to the host: what goes into modules and comes out of them, the loss,
//! the gradients of all of these, those of the weights, and by what the optimizer then changes the weights.
//!
//! Values are handed over in the order in which they are computed. Gradients are those of the summed loss, whatever the
//! loss scale. Of a module that is recomputed the first run is seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tt_collators::Batch;
use tt_nn::{Hooks, ModulePath, ParamTree};
use tt_optimizers::Optimizers;
use tt_tensor::{DType, Parameter, Seed, Tensor};

use crate::Loss;
use crate::error::Result;
use crate::guard::Verdict;
use crate::job::Prepared;
use crate::step::num_targets;

/// What a tensor is to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Of a module.
    Input,
    /// Of a module.
    Output,
    /// The mean loss.
    Loss,
    /// Of the loss by a module's output.
    OutputGradient,
    /// Of the loss by a module's input, as far as it is known when the module is left.
    InputGradient,
    /// The gradient of a parameter.
    WeightGradient,
    /// The norm of the gradients of all weights, of the mean loss.
    GradNorm,
    /// What the optimizer adds to a weight.
    Update,
}

/// Which tensor of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) role: Role,
    /// The path of the module or the weight; `loss`, `grad_norm`.
    pub(super) tensor: String,
    /// Of a module that is used several times: which time, from 0, in the order of the pass.
    pub(super) call: usize,
}

/// A tensor of a step, on the host.
pub(super) struct Seen {
    pub(super) key: Key,
    /// The module whose code has computed it; "" for the model itself.
    pub(super) within: String,
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// Takes the tensors of a step as they come.
pub(super) trait Sink: Send + 'static {
    fn see(&mut self, seen: Seen);
}

/// What a step came to.
pub(super) struct Step {
    pub(super) loss: f32,
    pub(super) grad_norm: f32,
    /// What the summed loss is divided by.
    pub(super) weight: f32,
    /// The guard let it reach the weights.
    pub(super) is_applied: bool,
    pub(super) lr: f64,
}

/// Where a step starts, if not where its own run does.
pub(super) struct Start {
    pub(super) weights: Weights,
    /// What the optimizer is given in place of the step's own gradients, by path.
    pub(super) gradients: HashMap<String, Arc<[f32]>>,
}

/// Makes a step on `batch`. Gives back the weights before it.
pub(super) fn observe<S: Sink>(
    prepared: Prepared,
    batch: &Batch,
    start: Option<Start>,
    sink: S,
) -> Result<(S, Step, Weights)> {
    let Prepared {
        mut training,
        trainer,
        ..
    } = prepared;
    let (weights, gradients) = match start {
        Some(Start { weights, gradients }) => {
            weights.load(&training.params)?;
            (weights, Some(gradients))
        }
        None => (Weights::read(&training.params)?, None),
    };
    training.step = step_of_highest_rate(&training.optimizers);

    let probe = Arc::new(Probe::new(sink));
    let batches = std::slice::from_ref(batch);
    let seed = training.guard.backward_seed(num_targets(batches));
    let seer = probe.clone();
    training.on_gradient(Arc::new(move |parameter| seer.see_gradient(parameter)));
    let mut totals = training.accumulate(batches, |fwd, model, batch| {
        let fwd = fwd.clone().with_hooks(probe.clone());
        let loss = trainer.loss(&fwd, model, batch)?;
        probe.turn(&loss, seed)?;
        Ok(loss)
    })?;
    let weight = read(&totals.weight)?.iter().sum();
    for (path, values) in gradients.iter().flatten() {
        let parameter = training.params.get(path)?;
        let values: Vec<f32> = values.iter().map(|value| value * seed).collect();
        let grad = Tensor::from_slice(&values, parameter.shape(), training.device)?;
        parameter.set_grad(grad);
    }
    training.reduce(&mut totals)?;
    let judgement = training.judge(&totals)?;
    let output = training.take_step(judgement)?;
    let mut state = probe.state();
    let grad_norm = output.numbers.grad_norm;
    state.see(Role::GradNorm, "grad_norm", "", &[], vec![grad_norm]);
    for (spec, parameter) in training.params.iter() {
        let before = weights.get(&spec.path);
        if let (true, Some(before)) = (parameter.is_trainable(), before) {
            let after = read(&parameter.value())?;
            let moved = after.iter().zip(before);
            let moved = moved.map(|(after, before)| after - before).collect();
            state.see(Role::Update, &spec.path, "", &spec.shape, moved);
        }
    }
    let step = Step {
        loss: output.numbers.loss,
        grad_norm,
        weight,
        is_applied: matches!(output.verdict, Verdict::Apply | Verdict::Warn(_)),
        lr: output.lr,
    };
    let sink = state.sink.take().expect("taken once");
    Ok((sink, step, weights))
}

/// Where updates are largest, and say most: a warmup begins at a rate of 0, which would change nothing.
fn step_of_highest_rate(optimizers: &Optimizers) -> u64 {
    const LONGEST_WARMUP: u64 = 100_000;
    let rate = |step: &u64| -> f64 { optimizers.rates(*step).map(|(_, lr)| lr).product() };
    let higher = |best: u64, step: u64| {
        if rate(&step) > rate(&best) {
            step
        } else {
            best
        }
    };
    (0..=LONGEST_WARMUP).reduce(higher).unwrap_or(0)
}

/// The values of all parameters by path.
#[derive(Clone, Default)]
pub(super) struct Weights(Arc<HashMap<String, Vec<f32>>>);

impl Weights {
    fn read(params: &ParamTree) -> Result<Self> {
        let values = params
            .iter()
            .map(|(spec, parameter)| Ok((spec.path.clone(), read(&parameter.value())?)));
        Ok(Self(Arc::new(values.collect::<Result<_>>()?)))
    }

    /// Each of them larger or smaller by this share, at random and the same every time.
    pub(super) fn perturbed(&self, relative: f32) -> Self {
        let change = |(path, values): (&String, &Vec<f32>)| {
            let seed = Seed::new(0).fold_str(path);
            let values = values.iter().zip(0..);
            let values = values.map(|(value, index)| {
                let sign = if seed.fold(index).unit() < 0.5 {
                    -1.0
                } else {
                    1.0
                };
                value * (1.0 + sign * relative)
            });
            (path.clone(), values.collect())
        };
        Self(Arc::new(self.0.iter().map(change).collect()))
    }

    /// Puts them into parameters of the same paths and shapes.
    fn load(&self, params: &ParamTree) -> Result<()> {
        for (spec, parameter) in params.iter() {
            if let Some(values) = self.0.get(&spec.path) {
                let old = parameter.value();
                let new = Tensor::from_slice(values, spec.shape.clone(), old.device())?;
                parameter.set(new.to_dtype(old.dtype())?)?;
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, path: &str) -> Option<&[f32]> {
        self.0.get(path).map(Vec::as_slice)
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, Vec<f32>); N]> for Weights {
    fn from(weights: [(&str, Vec<f32>); N]) -> Self {
        let weights = weights.map(|(path, values)| (path.to_owned(), values));
        Self(Arc::new(weights.into()))
    }
}

fn read(tensor: &Tensor) -> tt_tensor::Result<Vec<f32>> {
    tensor.detach().to_dtype(DType::F32)?.to_vec()
}

/// Sees the tensors of a step.
struct Probe<S>(Mutex<State<S>>);

struct State<S> {
    sink: Option<S>,
    /// The modules that the pass is within, the innermost last.
    within: Vec<String>,
    /// Tensors seen so far, of modules that are used several times.
    calls: HashMap<(Role, String), usize>,
    /// The backward pass has begun: what gradients are multiplied with to be those of the summed loss.
    scale: Option<f32>,
}

impl<S: Sink> Probe<S> {
    fn new(sink: S) -> Self {
        Self(Mutex::new(State {
            sink: Some(sink),
            within: Vec::new(),
            calls: HashMap::new(),
            scale: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // What a panic could leave half changed is only looked at here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backward pass begins, of the summed loss times `seed`.
    fn turn(&self, loss: &Loss, seed: f32) -> Result<()> {
        let (sum, weight) = (read(&loss.sum)?, read(&loss.weight)?);
        let weight = weight.iter().sum::<f32>().max(f32::MIN_POSITIVE);
        let mean = sum.iter().sum::<f32>() / weight;
        let mut state = self.state();
        state.see(Role::Loss, "loss", "", &[], vec![mean]);
        state.within.clear();
        state.scale = Some(seed.recip());
        Ok(())
    }

    fn see_gradient(&self, parameter: &Parameter) -> tt_tensor::Result<()> {
        if let Some(grad) = parameter.grad() {
            let path = parameter.path();
            let module = path.rsplit_once('.').map_or("", |(module, _)| module);
            self.state()
                .see_tensor(Role::WeightGradient, path, module, &grad)?;
        }
        Ok(())
    }
}

impl<S: Sink> State<S> {
    fn see_tensor(
        &mut self,
        role: Role,
        tensor: &str,
        within: &str,
        seen: &Tensor,
    ) -> tt_tensor::Result<()> {
        let mut values = read(seen)?;
        if let Some(scale) = self.scale {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        self.see(role, tensor, within, seen.dims(), values);
        Ok(())
    }

    fn see(&mut self, role: Role, tensor: &str, within: &str, shape: &[usize], values: Vec<f32>) {
        let calls = self.calls.entry((role, tensor.to_owned())).or_default();
        let key = Key {
            role,
            tensor: tensor.to_owned(),
            call: *calls,
        };
        *calls += 1;
        if let Some(sink) = &mut self.sink {
            sink.see(Seen {
                key,
                within: within.to_owned(),
                shape: shape.to_vec(),
                values,
            });
        }
    }

    /// The innermost module that the pass is within.
    fn innermost(&self) -> String {
        self.within.last().cloned().unwrap_or_default()
    }

    fn is_backward(&self) -> bool {
        self.scale.is_some()
    }
}

impl<S: Sink> Hooks for Probe<S> {
    fn enter_forward(&self, module: &ModulePath, input: &Tensor) -> tt_nn::Result<()> {
        let mut state = self.state();
        if state.is_backward() {
            return Ok(()); // it is run again
        }
        let within = state.innermost();
        state.see_tensor(Role::Input, module.as_str(), &within, input)?;
        state.within.push(module.to_string());
        Ok(())
    }

    fn exit_forward(&self, module: &ModulePath, output: &Tensor) -> tt_nn::Result<()> {
        let mut state = self.state();
        if state.is_backward() {
            return Ok(());
        }
        state.within.pop();
        state.see_tensor(Role::Output, module.as_str(), module.as_str(), output)?;
        Ok(())
    }

    fn enter_backward(
        &self,
        module: &ModulePath,
        gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        let mut state = self.state();
        let within = state.innermost();
        state.within.push(module.to_string());
        match gradient {
            Some(grad) => state.see_tensor(Role::OutputGradient, module.as_str(), &within, grad),
            None => Ok(()),
        }
    }

    fn exit_backward(
        &self,
        module: &ModulePath,
        gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        let mut state = self.state();
        state.within.pop();
        match gradient {
            Some(grad) => {
                state.see_tensor(Role::InputGradient, module.as_str(), module.as_str(), grad)
            }
            None => Ok(()),
        }
    }
}
