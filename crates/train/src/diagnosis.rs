//! Where a step stopped being finite: its micro-batches are run again, and every tensor is looked at.
//!
//! The same weights, dropout and loss scale give the same numbers, so what is found first is what came up first. Looked
//! at are, in this order: the weights; then for each micro-batch the output of each module as it is left, the loss,
//! and the gradients of each module's weights as it is left backward. Slow, as all of it is read back to the host, and
//! only for steps that have failed already.
//!
//! Ranks that share the weights run their micro-batches side by side, as they did in the step, and say after each what they
//! have found: the first of them is told, to all. None runs one more than another, for weights are gathered by all.

use std::sync::{Arc, Mutex, PoisonError};

use tt_collators::Batch;
use tt_nn::{Hooks, ModulePath, ParamTree};
use tt_tensor::{DType, Parameter, Tape, Tensor};

use crate::Trainer;
use crate::device_batch::DeviceBatch;
use crate::error::Result;
use crate::finding::{Finding, Place, Values};
use crate::reduce::found_by_all;
use crate::step::{backward, num_targets};
use crate::training::Training;

/// Looks for the first tensor of step `step`, which was not applied, that is not finite; `micro_batches` are this rank's.
/// Gradients are dropped. All ranks do this together, and find the same.
pub(crate) fn first_non_finite(
    training: &Training,
    trainer: &dyn Trainer,
    step: u64,
    micro_batches: &[Batch],
) -> Result<Option<Finding>> {
    if let Some((path, values)) = non_finite_weight(training)? {
        return Ok(Some(Finding {
            place: Place::Weight,
            module: parent(&path),
            tensor: path,
            micro_batch: None,
            rank: None,
            rows: Vec::new(),
            values,
            changed_by: None,
        }));
    }
    let targets = training.reduce.num_targets(num_targets(micro_batches))?;
    let replay = Replay {
        training,
        trainer,
        steps: step - 1,
        seed: training.guard.backward_seed(targets),
    };
    training.drop_gradients();
    let found = replay.search(micro_batches);
    training.drop_gradients();
    found
}

/// The first parameter of which any rank has a part that is not finite, and what is in all parts.
fn non_finite_weight(training: &Training) -> Result<Option<(String, Values)>> {
    let own =
        |parameter: &Parameter| -> Result<Values> { Ok(Values::of(&read(&parameter.local())?)) };
    let (params, reduce) = (&training.params, &*training.reduce);
    let mut first = None;
    for (i, (_, parameter)) in params.iter().enumerate() {
        if !own(parameter)?.is_finite() {
            first = Some(i);
            break;
        }
    }
    let firsts = found_by_all(reduce, &first)?;
    let first = firsts.into_iter().flatten().min();
    let Some((spec, parameter)) = first.and_then(|i| params.iter().nth(i)) else {
        return Ok(None);
    };
    let counted = if reduce.counts(parameter) {
        own(parameter)?
    } else {
        Values::of(&[])
    };
    let parts = found_by_all(reduce, &counted)?;
    let values = parts.into_iter().reduce(Values::and);
    Ok(values.map(|values| (spec.path.clone(), values)))
}

fn parent(path: &str) -> String {
    let module = path.rsplit_once('.').map_or("", |(module, _)| module);
    module.to_owned()
}

fn read(tensor: &Tensor) -> tt_tensor::Result<Vec<f32>> {
    tensor.detach().to_dtype(DType::F32)?.to_vec()
}

struct Replay<'a> {
    training: &'a Training,
    trainer: &'a dyn Trainer,
    /// Done before the step.
    steps: u64,
    seed: f32,
}

impl Replay<'_> {
    fn search(&self, micro_batches: &[Batch]) -> Result<Option<Finding>> {
        let reduce = &*self.training.reduce;
        for (n, batch) in micro_batches.iter().enumerate() {
            let micro = reduce.share().index(n);
            let found = self.run_watched(micro, batch)?;
            let all = found_by_all(reduce, &found.map(|found| (found, batch.rows)))?;
            let mut all = all.into_iter().enumerate();
            let first = all.find_map(|(rank, found)| Some((rank, found?)));
            if let Some((rank, (mut finding, rows))) = first {
                if finding.rows.is_empty() {
                    let behind = self.rows_behind(micro, batch, rows)?;
                    finding.rows = found_by_all(reduce, &behind)?.swap_remove(rank);
                }
                return Ok(Some(finding));
            }
        }
        Ok(None)
    }

    fn run_watched(&self, micro: usize, batch: &Batch) -> Result<Option<Finding>> {
        let watch = Arc::new(Watch::new(&self.training.params, batch.rows));
        let loss = self.run(micro, batch, &watch)?;
        let found = watch.take();
        // The loss is made between the last output and the first gradient.
        let is_before_loss = |found: &Found| found.place == Place::Forward;
        let found = match (found, loss.is_finite()) {
            (Some(found), _) if is_before_loss(&found) => Some(found),
            (_, false) => Some(Found {
                place: Place::Loss,
                tensor: "loss".to_owned(),
                module: String::new(),
                rows: Vec::new(),
                values: Values::of(&[loss]),
            }),
            (found, true) => found,
        };
        let share = self.training.reduce.share();
        Ok(found.map(|found| Finding {
            place: found.place,
            tensor: found.tensor,
            module: found.module,
            micro_batch: Some(micro),
            rank: (share.ranks > 1).then_some(share.rank),
            rows: found.rows,
            values: found.values,
            changed_by: None,
        }))
    }

    /// The loss. Gradients are added up, as they were in the step.
    fn run(&self, micro: usize, batch: &Batch, watch: &Arc<Watch>) -> Result<f32> {
        let tape = Tape::new();
        let ranks = self.training.ranks.as_ref();
        if ranks.is_some_and(|ranks| ranks.sums_at_once()) {
            let watch = watch.clone();
            // There may be no memory for all of them, which the step did not keep either.
            tape.on_gradient(Arc::new(move |parameter| {
                watch.check_gradient(parameter)?;
                parameter.take_grad();
                Ok(())
            }));
        }
        let fwd = self.training.forward(&tape, self.steps, micro);
        let fwd = fwd.with_hooks(watch.clone());
        let device_batch = DeviceBatch::upload(batch, self.training.device)?;
        let device_batch = device_batch.with_counts(&self.training.counts);
        let loss = self
            .trainer
            .loss(&fwd, &*self.training.model, &device_batch)?;
        let sum = read(&loss.sum)?.iter().sum();
        watch.begin_backward();
        backward(&tape, &loss.sum, self.seed)?;
        self.training.reduce.end_pass();
        watch.check_gradients("")?;
        Ok(sum)
    }

    /// The rows whose loss or gradient is not finite when those of the others are left out. As many passes as are asked
    /// for, so that all ranks make the same.
    fn rows_behind(&self, micro: usize, batch: &Batch, passes: usize) -> Result<Vec<usize>> {
        let mut rows = Vec::new();
        for row in 0..passes {
            let mut alone = batch.clone();
            if row < batch.rows {
                alone.keep_row(row);
            }
            self.training.drop_gradients();
            let watch = Arc::new(Watch::new(&self.training.params, batch.rows));
            let loss = self.run(micro, &alone, &watch)?;
            if row < batch.rows && (!loss.is_finite() || watch.take().is_some()) {
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

/// Keeps the first tensor that is not finite.
struct Watch {
    params: ParamTree,
    /// Of the batch: rows of an output are told apart if it has as many.
    rows: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    found: Option<Found>,
    /// The backward pass has begun; a module that is recomputed there is forward again.
    is_backward: bool,
}

struct Found {
    place: Place,
    tensor: String,
    module: String,
    rows: Vec<usize>,
    values: Values,
}

impl Watch {
    fn new(params: &ParamTree, rows: usize) -> Self {
        Self {
            params: params.clone(),
            rows,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // What a panic could leave half changed is only looked at here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Found> {
        self.state().found.take()
    }

    /// The backward pass begins.
    fn begin_backward(&self) {
        self.state().is_backward = true;
    }

    /// The gradients of the weights of `module`; of all weights, last first, for "".
    fn check_gradients(&self, module: &str) -> tt_tensor::Result<()> {
        if self.state().found.is_some() {
            return Ok(());
        }
        let params: Vec<_> = self.params.iter().collect();
        for (spec, parameter) in params.into_iter().rev() {
            if module.is_empty() || parent(&spec.path) == module {
                self.check_gradient(parameter)?;
            }
        }
        Ok(())
    }

    /// That of one parameter, if it has any.
    fn check_gradient(&self, parameter: &Parameter) -> tt_tensor::Result<()> {
        let mut state = self.state();
        let Some(grad) = parameter.grad().filter(|_| state.found.is_none()) else {
            return Ok(());
        };
        let values = Values::of(&read(&grad)?);
        if !values.is_finite() {
            state.found = Some(Found {
                place: Place::Backward,
                tensor: parameter.path().to_owned(),
                module: parent(parameter.path()),
                rows: Vec::new(),
                values,
            });
        }
        Ok(())
    }
}

impl Hooks for Watch {
    fn exit_forward(&self, module: &ModulePath, output: &Tensor) -> tt_nn::Result<()> {
        let mut state = self.state();
        if state.is_backward || state.found.is_some() {
            return Ok(());
        }
        let all = read(output)?;
        let values = Values::of(&all);
        if values.is_finite() {
            return Ok(());
        }
        let rows = match output.dims().first() {
            Some(&rows) if rows == self.rows => all
                .chunks(all.len() / rows)
                .enumerate()
                .filter(|(_, row)| row.iter().any(|x| !x.is_finite()))
                .map(|(row, _)| row)
                .collect(),
            _ => Vec::new(),
        };
        state.found = Some(Found {
            place: Place::Forward,
            tensor: module.to_string(),
            module: module.to_string(),
            rows,
            values,
        });
        Ok(())
    }

    fn exit_backward(&self, module: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.check_gradients(module.as_str())
    }
}
