//! The autograd tape: operations in the order they ran, undone in reverse.
//!
//! A tensor obtained from [`Tape::watch`] is tracked; every operation with a tracked operand appends a
//! node holding what its gradient needs. [`Tape::backward`] pops nodes one by one, so activations are
//! freed as it passes them; it leaves the tape empty, with its memory kept for the next step.
//! Gradients of parameters are added in place to the parameter; a hook hears of each one completed.
//! Weights are saved by handle ([`Parameter`]), everything else by value.
//! A part of the pass may keep only its input and be run again when backward reaches it ([`Tape::recompute`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{DType, Shape};
use tt_cpu::Write;

use crate::device::{Device, Storage};
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::profile;
use crate::tensor::Tensor;

/// A recorded forward pass. Cloning gives another handle to the same tape.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Inner>>);

/// Called with each parameter whose gradient is complete for this backward pass.
pub type GradientHook = Arc<dyn Fn(&Arc<Parameter>) -> Result<()> + Send + Sync>;

type Backward = Box<dyn FnOnce(&mut Gradients) -> Result<()> + Send>;

#[derive(Default)]
struct Inner {
    nodes: Vec<Node>,
    vars: Vec<Var>,
    /// Watched parameters by address: a tied weight is one variable however often it is used.
    leaves: HashMap<usize, VarId>,
    on_gradient: Option<GradientHook>,
    /// For what is run again; kept, so that its memory is.
    scratch: Option<Tape>,
    loss_scale: Option<f32>,
}

enum Node {
    Op {
        name: &'static str,
        inputs: Vec<Option<VarId>>,
        output: VarId,
        backward: Backward,
    },
    Mark(Box<dyn FnOnce() -> Result<()> + Send>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VarId(usize);

#[derive(Default)]
struct Var {
    parameter: Option<Arc<Parameter>>,
    /// Gradient gathered so far; parameters keep theirs themselves.
    grad: Option<Tensor>,
    /// Recorded uses that backward has not passed yet.
    uses: usize,
}

/// A tensor's place on a tape.
#[derive(Clone)]
pub(crate) struct Track {
    tape: Tape,
    var: VarId,
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic while recording")
    }

    /// Sets the hook for completed parameter gradients.
    pub fn on_gradient(&self, hook: GradientHook) {
        self.inner().on_gradient = Some(hook);
    }

    /// Says what the loss will be multiplied by before it is undone. Operations that make gradients while they run forward
    /// make them of that size, as 16-bit ones may be too small otherwise. Gradients are right whatever is said.
    pub fn set_loss_scale(&self, scale: f32) {
        self.inner().loss_scale = Some(scale);
    }

    /// The parameter's value, tracked if the parameter is trainable.
    pub fn watch(&self, parameter: &Arc<Parameter>) -> Tensor {
        let mut value = parameter.value();
        value.weight = Some(parameter.clone());
        if parameter.is_trainable() {
            let mut inner = self.inner();
            let Inner { vars, leaves, .. } = &mut *inner;
            let key = Arc::as_ptr(parameter) as usize;
            let var = *leaves.entry(key).or_insert_with(|| {
                vars.push(Var {
                    parameter: Some(parameter.clone()),
                    ..Var::default()
                });
                VarId(vars.len() - 1)
            });
            value.track = Some(Track {
                tape: self.clone(),
                var,
            });
        }
        value
    }

    /// Calls `event` when the backward pass comes by this place, e.g. to gather a module's weights again.
    pub fn mark(&self, event: impl FnOnce() -> Result<()> + Send + 'static) {
        self.inner().nodes.push(Node::Mark(Box::new(event)));
    }

    /// As [`Tape::mark`], and hands over the gradient gathered for `tensor` by then: all of it, if nothing before this
    /// place used the tensor. `None` if there is none.
    pub fn mark_gradient(
        &self,
        tensor: &Tensor,
        event: impl FnOnce(Option<Tensor>) -> Result<()> + Send + 'static,
    ) {
        let track = tensor.track.as_ref();
        let track = track.filter(|track| Arc::ptr_eq(&track.tape.0, &self.0));
        let var = track.map(|track| track.var);
        // The handle must not keep the tape that will hold it alive.
        let tape = Arc::downgrade(&self.0);
        self.mark(move || {
            let gathered = |var: VarId| {
                let tape = tape.upgrade()?;
                let inner = tape.lock().expect("no panic while recording");
                let var = &inner.vars[var.0];
                match &var.parameter {
                    Some(parameter) => parameter.grad(),
                    None => var.grad.clone(),
                }
            };
            event(var.and_then(gathered))
        });
    }

    /// Leaves `output`, made of `x` and `weights` off the tape, as one node that `again` undoes: it makes the output
    /// from `x` once more, on a tape of its own. Gradients have the same bits as if all had been recorded here.
    pub fn recompute(
        &self,
        x: &Tensor,
        weights: &[Arc<Parameter>],
        output: Tensor,
        again: impl FnOnce(&Tape, &Tensor) -> Result<Tensor> + Send + 'static,
    ) -> Result<Tensor> {
        let weights: Vec<_> = weights.iter().map(|weight| self.watch(weight)).collect();
        let inputs: Vec<_> = std::iter::once(x).chain(&weights).collect();
        let x = x.detach();
        record("recompute", &inputs, output, move |g| {
            let scratch = g.tape.inner().scratch.take().unwrap_or_default();
            // The gradient goes on growing where it is: a sum of sums would be rounded differently.
            let dx = g.take(0);
            let (x, var) = if g.wanted(0) {
                scratch.leaf(x, dx)
            } else {
                (x, None)
            };
            let y = again(&scratch, &x)?;
            scratch.walk_back(&y, g.output())?;
            if let Some(dx) = var.and_then(|var| scratch.inner().vars[var.0].grad.take()) {
                g.add(0, dx)?;
            }
            scratch.reset();
            g.tape.inner().scratch = Some(scratch);
            Ok(())
        })
    }

    /// `value` as a variable of its own, with the gradient gathered for it so far.
    fn leaf(&self, mut value: Tensor, grad: Option<Tensor>) -> (Tensor, Option<VarId>) {
        let mut inner = self.inner();
        inner.vars.push(Var {
            grad,
            ..Var::default()
        });
        let var = VarId(inner.vars.len() - 1);
        value.track = Some(Track {
            tape: self.clone(),
            var,
        });
        (value, Some(var))
    }

    /// Forgets everything recorded, e.g. after a failed step.
    pub fn reset(&self) {
        let mut inner = self.inner();
        inner.nodes.clear();
        inner.vars.clear();
        inner.leaves.clear();
    }

    /// Number of recorded operations.
    pub fn len(&self) -> usize {
        self.inner().nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gradients of `loss` (one element) with respect to every watched parameter, added to them.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        let result = self.start(loss);
        self.reset();
        result
    }

    fn start(&self, loss: &Tensor) -> Result<()> {
        if loss.elem_count() != 1 {
            let why = format!(
                "the loss has shape {:?}, expected one element",
                loss.shape()
            );
            return Err(Error::invalid("backward", why));
        }
        if let Some(parameter) = &loss.weight {
            let why = format!("the loss is the parameter `{}` itself", parameter.path());
            return Err(Error::invalid("backward", why));
        }
        let seed = Tensor::ones(loss.shape().clone(), loss.device())?;
        self.walk_back(loss, seed)
    }

    /// Undoes all nodes, starting from the gradient `seed` of `output`.
    fn walk_back(&self, output: &Tensor, seed: Tensor) -> Result<()> {
        let Some(track) = &output.track else {
            let why = "the loss depends on no watched parameter";
            return Err(Error::invalid("backward", why));
        };
        self.inner().vars[track.var.0].grad = Some(seed);
        loop {
            // The lock is not held while a gradient is computed: it locks again for each result.
            let Some(node) = self.inner().nodes.pop() else {
                return Ok(());
            };
            match node {
                Node::Mark(event) => event()?,
                Node::Op {
                    name,
                    inputs,
                    output,
                    backward,
                } => {
                    let grad = self.inner().vars[output.0].grad.take();
                    // Without a gradient nothing that matters came of this output.
                    if let Some(grad) = grad {
                        let _span = profile::span("gradient", || name);
                        let mut gradients = Gradients {
                            tape: self,
                            inputs: &inputs,
                            output: Some(grad),
                        };
                        backward(&mut gradients).map_err(|error| match error {
                            Error::Backend(inner) => {
                                Error::Backend(inner.context(format!("in the gradient of {name}")))
                            }
                            other => other,
                        })?;
                    }
                    for var in inputs.into_iter().flatten() {
                        self.used(var)?;
                    }
                }
            }
        }
    }

    /// Notes that backward has passed one use of `var`; the last use of a parameter completes its gradient.
    fn used(&self, var: VarId) -> Result<()> {
        let completed = {
            let mut inner = self.inner();
            let hook = inner.on_gradient.clone();
            let var = &mut inner.vars[var.0];
            var.uses -= 1;
            match (var.uses, &var.parameter, hook) {
                (0, Some(parameter), Some(hook)) => Some((hook, parameter.clone())),
                _ => None,
            }
        };
        match completed {
            Some((hook, parameter)) => hook(&parameter),
            None => Ok(()),
        }
    }
}

/// Appends an operation if any of `inputs` is tracked; `output` then is tracked too.
///
/// `backward` receives the gradient of the output and adds to those of the inputs, by their position.
pub(crate) fn record(
    name: &'static str,
    inputs: &[&Tensor],
    mut output: Tensor,
    backward: impl FnOnce(&mut Gradients) -> Result<()> + Send + 'static,
) -> Result<Tensor> {
    let mut tapes = inputs.iter().filter_map(|t| t.track.as_ref());
    let Some(Track { tape, .. }) = tapes.next() else {
        return Ok(output);
    };
    if tapes.any(|other| !Arc::ptr_eq(&other.tape.0, &tape.0)) {
        let why = "operands are recorded on different tapes";
        return Err(Error::invalid(name, why));
    }
    let inputs: Vec<_> = inputs
        .iter()
        .map(|t| t.track.as_ref().map(|track| track.var))
        .collect();
    let mut inner = tape.inner();
    for var in inputs.iter().flatten() {
        inner.vars[var.0].uses += 1;
    }
    inner.vars.push(Var::default());
    let var = VarId(inner.vars.len() - 1);
    inner.nodes.push(Node::Op {
        name,
        inputs,
        output: var,
        backward: Box::new(backward),
    });
    drop(inner);
    output.track = Some(Track {
        tape: tape.clone(),
        var,
    });
    Ok(output)
}

/// What the loss will be multiplied by, as far as the tape of these has been told; 1 if not.
pub(crate) fn loss_scale(inputs: &[&Tensor]) -> f32 {
    let mut tapes = inputs.iter().filter_map(|t| t.track.as_ref());
    let scale = tapes.next().and_then(|track| track.tape.inner().loss_scale);
    scale.unwrap_or(1.0)
}

/// What a gradient function sees: the gradient of its output, and where those of the inputs go.
pub(crate) struct Gradients<'a> {
    tape: &'a Tape,
    inputs: &'a [Option<VarId>],
    output: Option<Tensor>,
}

impl Gradients<'_> {
    /// The gradient of the output. Called once.
    pub fn output(&mut self) -> Tensor {
        self.output.take().expect("taken once by each gradient")
    }

    /// True if the input's gradient is of use.
    pub fn wanted(&self, input: usize) -> bool {
        self.inputs[input].is_some()
    }

    /// Takes what was gathered so far for an input that is no parameter, to go on with it elsewhere.
    fn take(&mut self, input: usize) -> Option<Tensor> {
        let var = self.inputs[input]?;
        self.tape.inner().vars[var.0].grad.take()
    }

    /// Adds a finished gradient for an input; the first one is kept as it is.
    pub fn add(&mut self, input: usize, grad: Tensor) -> Result<()> {
        let Some(var) = self.inputs[input] else {
            return Ok(());
        };
        self.update(var, |slot| match slot {
            Some(sum) => sum.add_in_place(&grad),
            None => Ok(grad),
        })
    }

    /// Lets a kernel write the gradient of an input of `like`'s shape: assigned if it is the first, else
    /// accumulated in place, without a temporary.
    pub fn write(
        &mut self,
        input: usize,
        like: &Tensor,
        kernel: impl FnOnce(&mut Storage, Write) -> Result<()>,
    ) -> Result<()> {
        self.write_shaped(input, (like.dtype, like.device, like.shape()), kernel)
    }

    /// The same where there may be no tensor to be like: a weight that is not needed, and may be elsewhere.
    pub fn write_shaped(
        &mut self,
        input: usize,
        (dtype, device, shape): (DType, Device, &Shape),
        kernel: impl FnOnce(&mut Storage, Write) -> Result<()>,
    ) -> Result<()> {
        let Some(var) = self.inputs[input] else {
            return Ok(());
        };
        self.update(var, |slot| {
            let (sum, write) = match slot {
                Some(sum) => (sum.into_owned()?, Write::Accumulate),
                None => {
                    let out = device.alloc(dtype, shape.elem_count())?;
                    let fresh = Tensor::from_output(out, dtype, device, shape.clone());
                    (fresh, Write::Assign)
                }
            };
            sum.write(|storage| kernel(storage, write))?;
            Ok(sum)
        })
    }

    fn update(
        &self,
        var: VarId,
        change: impl FnOnce(Option<Tensor>) -> Result<Tensor>,
    ) -> Result<()> {
        let (parameter, grad) = {
            let mut inner = self.tape.inner();
            let var = &mut inner.vars[var.0];
            (var.parameter.clone(), var.grad.take())
        };
        match parameter {
            Some(parameter) => {
                let mut slot = parameter.grad_slot();
                let grad = slot.take();
                *slot = Some(change(grad)?);
            }
            None => {
                let grad = change(grad)?;
                self.tape.inner().vars[var.0].grad = Some(grad);
            }
        }
        Ok(())
    }
}

/// An operand kept for the backward pass: a weight by handle, anything else by value.
pub(crate) enum Saved {
    Weight(Arc<Parameter>),
    Value(Tensor),
}

impl Saved {
    pub fn new(tensor: &Tensor) -> Self {
        match &tensor.weight {
            Some(parameter) => Self::Weight(parameter.clone()),
            None => Self::Value(tensor.detach()),
        }
    }

    pub fn get(&self) -> Tensor {
        match self {
            Self::Weight(parameter) => parameter.value(),
            Self::Value(tensor) => tensor.clone(),
        }
    }
}
