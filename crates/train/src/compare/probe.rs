//! One step of a run, every tensor of it read back to the host: what goes into modules and comes out of them, the loss,
//! the gradients of all of these, those of the weights, and by what the optimizer then changes the weights.
//!
//! Values are handed over in the order in which they are computed. Gradients are those of the summed loss, whatever the
//! loss scale. Of a module that is recomputed the first run is seen.
//!
//! Of a step of several micro-batches each is seen apart, by whichever rank runs it. Gradients of weights are then seen
//! once, as they are when all are summed; the first rank puts them together, and weights too, from the parts of all.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tt_collators::Batch;
use tt_nn::{Hooks, ModulePath, ParamTree};
use tt_optimizers::Optimizers;
use tt_sharding::{Pieces, Sharded};
use tt_tensor::{DType, Device, Parameter, Precision, Seed, Shard, Tensor};

use crate::Loss;
use crate::error::Result;
use crate::guard::Verdict;
use crate::job::Prepared;
use crate::step::num_targets;
use crate::training::Training;

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
    /// Of a step of several: which micro-batch, from 0; `None` for what is of the whole step.
    pub(super) micro_batch: Option<usize>,
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

/// Until it is taken.
impl<S: Sink> Sink for Option<S> {
    fn see(&mut self, seen: Seen) {
        if let Some(sink) = self {
            sink.see(seen);
        }
    }
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

/// A step that is to be made and looked at, by one rank or together by all that share a model.
pub struct Observer {
    batches: Vec<Batch>,
    start: Option<Start>,
    sink: Arc<Mutex<dyn Sink>>,
}

/// What a rank has to say of the step it has made.
pub struct Observed {
    pub(super) step: Step,
    /// Those before it, on the first rank.
    pub(super) weights: Weights,
    /// Of the modules, by path.
    pub(super) classes: HashMap<String, &'static str>,
    pub(super) precision: Precision,
}

impl Observer {
    pub(super) fn new(batches: &[Batch], start: Option<Start>, sink: Arc<Mutex<dyn Sink>>) -> Self {
        Self {
            batches: batches.to_vec(),
            start,
            sink,
        }
    }

    /// Makes this rank's part of the step.
    pub fn observe(&self, prepared: Prepared) -> Result<Observed> {
        let Prepared {
            mut training,
            trainer,
            ..
        } = prepared;
        let ranks = training.ranks.clone();
        let whole =
            |part: &Tensor, parameter: &Parameter| whole(part, parameter.shard(), ranks.as_deref());
        let weights = match &self.start {
            Some(start) => {
                start.weights.load(&training)?;
                start.weights.clone()
            }
            None => Weights::read(&training.params, whole)?,
        };
        training.step = step_of_highest_rate(&training.optimizers);

        let share = training.reduce.share();
        let own: Vec<Batch> = share.of(&self.batches).map(Cow::into_owned).collect();
        let count = self.batches.len();
        let seed = training.guard.backward_seed(num_targets(&self.batches));
        let probe = Arc::new(Probe::new(self.sink.clone()));
        // Then gradients of weights are complete among those of modules, and are seen there.
        let is_one_pass = count == 1;
        if is_one_pass {
            let seer = probe.clone();
            training.on_gradient(Arc::new(move |parameter| seer.see_gradient(parameter)));
        }
        let passes = Cell::new(0);
        training.count(&own, |batch| trainer.counts(batch))?;
        let mut totals = training.accumulate(&own, |fwd, model, batch| {
            let micro_batch = share.index(passes.replace(passes.get() + 1));
            probe.begin((!is_one_pass).then_some(micro_batch), micro_batch < count);
            let fwd = fwd.clone().with_hooks(probe.clone());
            let loss = trainer.loss(&fwd, model, batch)?;
            probe.turn(&loss, seed)?;
            Ok(loss)
        })?;
        probe.begin_end(share.rank == 0);
        training.reduce(&mut totals)?;
        let weight = read(&totals.weight)?.iter().sum();
        let params: Vec<_> = training.params.iter().collect();
        if !is_one_pass {
            // The last first, as the backward pass makes them.
            for (spec, parameter) in params.iter().rev() {
                if let Some(grad) = parameter.grad() {
                    let values = whole(&grad, parameter)?;
                    let values = values.iter().map(|value| value / seed).collect();
                    let mut state = probe.state();
                    let module = module_of(&spec.path);
                    state.see(
                        Role::WeightGradient,
                        &spec.path,
                        module,
                        &spec.shape,
                        values,
                    );
                }
            }
        }
        let gradients = self.start.as_ref().map(|start| &start.gradients);
        for (path, values) in gradients.into_iter().flatten() {
            let parameter = training.params.get(path)?;
            let values: Vec<f32> = values.iter().map(|value| value * seed).collect();
            parameter.set_grad(part(&values, parameter.shard(), training.device)?);
        }
        let judgement = training.judge(&totals)?;
        let output = training.take_step(judgement)?;
        let grad_norm = output.numbers.grad_norm;
        let mut state = probe.state();
        state.see(Role::GradNorm, "grad_norm", "", &[], vec![grad_norm]);
        for (spec, parameter) in training.params.iter() {
            let before = weights.get(&spec.path);
            if let (true, Some(before)) = (parameter.is_trainable(), before) {
                let after = whole(&parameter.local(), parameter)?;
                let moved = after.iter().zip(before);
                let moved = moved.map(|(after, before)| after - before).collect();
                state.see(Role::Update, &spec.path, "", &spec.shape, moved);
            }
        }
        let classes = tt_models::modules(&*training.model)?;
        let classes = classes.into_iter();
        Ok(Observed {
            step: Step {
                loss: output.numbers.loss,
                grad_norm,
                weight,
                is_applied: matches!(output.verdict, Verdict::Apply | Verdict::Warn(_)),
                lr: output.lr,
            },
            weights,
            classes: classes
                .map(|(path, class)| (path.to_string(), class))
                .collect(),
            precision: training.precision,
        })
    }
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
    fn read(
        params: &ParamTree,
        whole: impl Fn(&Tensor, &Parameter) -> Result<Vec<f32>>,
    ) -> Result<Self> {
        let values = params.iter().map(|(spec, parameter)| {
            let values = whole(&parameter.local(), parameter)?;
            Ok((spec.path.clone(), values))
        });
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
    fn load(&self, training: &Training) -> Result<()> {
        for (spec, parameter) in training.params.iter() {
            if let Some(values) = self.0.get(&spec.path) {
                let old = parameter.local();
                let new = part(values, parameter.shard(), old.device())?;
                parameter.set(new.to_dtype(old.dtype())?)?;
            }
        }
        training.reduce.forget();
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

/// The part of `values`, which are the whole, that is held here.
fn part(values: &[f32], shard: &Shard, device: Device) -> tt_tensor::Result<Tensor> {
    if shard.is_whole() {
        return Tensor::from_slice(values, shard.shape(), device);
    }
    let runs = shard.runs().flat_map(|run| &values[run]);
    let own: Vec<f32> = runs.copied().collect();
    Tensor::from_slice(&own, shard.local_shape(), device)
}

/// The whole of which `part` is held here, on the first of the ranks that share it; on the others, nothing. All of them do
/// this together.
fn whole(part: &Tensor, shard: &Shard, ranks: Option<&Sharded>) -> Result<Vec<f32>> {
    let Some(ranks) = ranks else {
        return Ok(read(part)?);
    };
    let part = part.detach().to_dtype(DType::F32)?;
    let count = shard.shape().iter().product();
    let mut bytes = Vec::new();
    Pieces::new(part, shard, ranks.world())?.append::<f32>(0..count, &mut bytes)?;
    if ranks.world().rank() > 0 {
        return Ok(Vec::new());
    }
    let values = bytes.chunks_exact(size_of::<f32>());
    Ok(values.map(bytemuck::pod_read_unaligned).collect())
}

fn module_of(parameter: &str) -> &str {
    let split = parameter.rsplit_once('.');
    split.map_or("", |(module, _)| module)
}

/// Sees the tensors of a step.
struct Probe(Mutex<State>);

struct State {
    sink: Arc<Mutex<dyn Sink>>,
    /// What is seen is another rank's to tell.
    is_blind: bool,
    micro_batch: Option<usize>,
    /// The modules that the pass is within, the innermost last.
    within: Vec<String>,
    /// Tensors seen so far, of modules that are used several times.
    calls: HashMap<(Role, String), usize>,
    /// The backward pass has begun: what gradients are multiplied with to be those of the summed loss.
    scale: Option<f32>,
}

impl Probe {
    fn new(sink: Arc<Mutex<dyn Sink>>) -> Self {
        Self(Mutex::new(State {
            sink,
            is_blind: false,
            micro_batch: None,
            within: Vec::new(),
            calls: HashMap::new(),
            scale: None,
        }))
    }

    /// A pass begins; one that is not `real` is of rows that another rank has.
    fn begin(&self, micro_batch: Option<usize>, is_real: bool) {
        let mut state = self.state();
        state.is_blind = !is_real;
        state.micro_batch = micro_batch;
        state.within.clear();
        state.calls.clear();
        state.scale = None;
    }

    /// All passes are over; what follows is told by one rank.
    fn begin_end(&self, is_first: bool) {
        let mut state = self.state();
        state.is_blind = !is_first;
        state.micro_batch = None;
        state.calls.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
            self.state()
                .see_tensor(Role::WeightGradient, path, module_of(path), &grad)?;
        }
        Ok(())
    }
}

impl State {
    fn see_tensor(
        &mut self,
        role: Role,
        tensor: &str,
        within: &str,
        seen: &Tensor,
    ) -> tt_tensor::Result<()> {
        if self.is_blind {
            return Ok(());
        }
        let mut values = read(seen)?;
        if let Some(scale) = self.scale {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        self.see(role, tensor, within, seen.dims(), values);
        Ok(())
    }

    fn see(&mut self, role: Role, tensor: &str, within: &str, shape: &[usize], values: Vec<f32>) {
        if self.is_blind {
            return;
        }
        let calls = self.calls.entry((role, tensor.to_owned())).or_default();
        let key = Key {
            role,
            tensor: tensor.to_owned(),
            call: *calls,
            micro_batch: self.micro_batch,
        };
        *calls += 1;
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.see(Seen {
            key,
            within: within.to_owned(),
            shape: shape.to_vec(),
            values,
        });
    }

    /// The innermost module that the pass is within.
    fn innermost(&self) -> String {
        self.within.last().cloned().unwrap_or_default()
    }

    fn is_backward(&self) -> bool {
        self.scale.is_some()
    }
}

impl Hooks for Probe {
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
