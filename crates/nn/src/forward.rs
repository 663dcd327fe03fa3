//! The context of one forward pass: weights at the moment of use, the tape, randomness, hooks.
//!
//! A module calls [`Forward::module`] around its body, so that policies (gathering sharded weights,
//! offload, recomputation, profiling) can act where it is entered and left, in both directions. Several may act on one
//! pass: the first is the outermost, entered first and left last, as if each were wrapped around those after it.

use std::sync::{Arc, Mutex};

use tt_tensor::{Parameter, Precision, Seed, Tape, Tensor, fused};

use crate::error::Result;
use crate::kv_cache::KvCache;
use crate::param_tree::ParamTree;
use crate::path::ModulePath;

/// Changes what linear layers give. Its weights are in the same [`ParamTree`] as the model's.
///
/// A model's [`Linear`](crate::Linear) asks the parameters it is given for an adapter and lets it change what the layer
/// gives; which layers have one, and what it computes, is the adapter's affair.
pub trait Adapter: Send + Sync {
    /// `x` `[.., in]` is what the linear layer at `layer` read and `y` `[.., out]` what it gives by itself; returns what
    /// it gives instead. A layer that is not adapted gives `y`.
    fn linear(&self, fwd: &Forward, layer: &ModulePath, x: &Tensor, y: Tensor) -> Result<Tensor>;
}

/// What happens around modules. The backward pass enters a module where the forward pass left it.
///
/// A module that is recomputed is run forward a second time, in the backward pass.
pub trait Hooks: Send + Sync {
    /// Before the value of `parameter` is handed out, in whatever module.
    fn before_use(&self, _parameter: &Arc<Parameter>) -> tt_tensor::Result<()> {
        Ok(())
    }
    /// Before a module runs on `input`.
    fn enter_forward(&self, _module: &ModulePath, _input: &Tensor) -> Result<()> {
        Ok(())
    }
    /// As [`Hooks::enter_forward`], of a second time in the backward pass.
    fn enter_recompute(&self, module: &ModulePath, input: &Tensor) -> Result<()> {
        self.enter_forward(module, input)
    }
    /// After it has given `output`.
    fn exit_forward(&self, _module: &ModulePath, _output: &Tensor) -> Result<()> {
        Ok(())
    }
    /// As [`Hooks::exit_forward`], of a second time in the backward pass: the module's own is what comes next.
    fn exit_recompute(&self, module: &ModulePath, output: &Tensor) -> Result<()> {
        self.exit_forward(module, output)
    }
    /// `gradient` is that of the output; `None` if nothing that matters came of it.
    fn enter_backward(
        &self,
        _module: &ModulePath,
        _gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        Ok(())
    }
    /// `gradient` is that of the input, without what comes of uses before the module; `None` if it has none.
    fn exit_backward(
        &self,
        _module: &ModulePath,
        _gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        Ok(())
    }
}

/// Which modules keep only their input and are run again in the backward pass.
pub trait Recompute: Send + Sync {
    /// `class` is the module's type, e.g. `Qwen2DecoderLayer`.
    fn recomputes(&self, module: &ModulePath, class: &'static str) -> bool;
}

/// Where tokens stand: rotary positions and the document they belong to.
#[derive(Clone, Debug)]
pub struct Positions {
    /// u32 `[B, T]`, counted from 0 in each document.
    pub position_ids: Tensor,
    /// Every position id is below this.
    pub bound: usize,
    /// u32 `[B, T]`; tokens attend within their own id. `None`: one document a row.
    pub segment_ids: Option<Tensor>,
}

/// One forward pass over the parameters of a model. Cloning gives another handle to the same pass.
#[derive(Clone)]
pub struct Forward {
    params: ParamTree,
    tape: Option<Tape>,
    /// Present while training: the stream that dropout draws from.
    seed: Option<Seed>,
    precision: Precision,
    /// The outermost first.
    hooks: Vec<Arc<dyn Hooks>>,
    recompute: Option<Arc<dyn Recompute>>,
    cache: Option<KvCache>,
    /// It is a part that runs for the second time.
    is_again: bool,
    /// Collects the trainable weights that are handed out, while a module runs off the tape.
    used: Option<Arc<Mutex<Vec<Arc<Parameter>>>>>,
}

impl Forward {
    /// Without gradients and without dropout.
    pub fn inference(params: &ParamTree) -> Self {
        Self {
            params: params.clone(),
            tape: None,
            seed: None,
            precision: Precision::default(),
            hooks: params.hooks().to_vec(),
            recompute: None,
            cache: None,
            is_again: false,
            used: None,
        }
    }

    /// Recorded on `tape`; `seed` is that of the micro-batch.
    pub fn training(params: &ParamTree, tape: &Tape, seed: Seed) -> Self {
        Self {
            tape: Some(tape.clone()),
            seed: Some(seed),
            ..Self::inference(params)
        }
    }

    /// The same pass in another number format.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Adds `hooks` inside those there are: they enter a module after them and leave it before them.
    pub fn with_hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks.push(hooks);
        self
    }

    /// Modules that `policy` names are run again in the backward pass. Nothing changes without a tape.
    pub fn with_recompute(self, policy: Arc<dyn Recompute>) -> Self {
        let recompute = Some(policy);
        Self { recompute, ..self }
    }

    /// Attention continues what `cache` holds, and appends to it.
    pub fn with_cache(self, cache: &KvCache) -> Self {
        let cache = Some(cache.clone());
        Self { cache, ..self }
    }

    /// Whether it is of training, where dropout is on.
    pub fn is_training(&self) -> bool {
        self.seed.is_some()
    }

    /// What products are computed in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn adapter(&self) -> Option<&Arc<dyn Adapter>> {
        self.params.adapter()
    }

    /// What attention continues and appends to, if text is being generated: see [`KvCache`] for what a module of its own
    /// kind must do with it, and [`attend`](crate::attend()), which does it.
    pub fn cache(&self) -> Option<&KvCache> {
        self.cache.as_ref()
    }

    /// The weight `name` of the module at `path`, to be used now and not kept.
    pub fn param(&self, path: &ModulePath, name: &str) -> Result<Tensor> {
        let parameter = self.params.get(path.join(name).as_str())?;
        for hooks in &self.hooks {
            hooks.before_use(parameter)?;
        }
        if let Some(used) = self.used.as_ref().filter(|_| parameter.is_trainable()) {
            let mut used = used.lock().expect("no panic while collecting");
            used.push(parameter.clone());
        }
        Ok(match &self.tape {
            Some(tape) => tape.watch(parameter),
            None => parameter.value(),
        })
    }

    /// Runs the body of a module of type `class` on `x`, between its hooks.
    ///
    /// The body may be run a second time, in the backward pass, if the module is recomputed: it must depend on
    /// nothing but its arguments and what it has captured. Of modules within one another the outermost is recomputed.
    pub fn module(
        &self,
        path: &ModulePath,
        class: &'static str,
        x: &Tensor,
        body: impl Fn(&Forward, &Tensor) -> Result<Tensor> + Send + 'static,
    ) -> Result<Tensor> {
        match (&self.tape, &self.recompute) {
            (Some(tape), Some(policy)) if policy.recomputes(path, class) => {
                self.recomputed(tape, path, x, body)
            }
            _ => self.hooked(path, x, body),
        }
    }

    fn hooked(
        &self,
        path: &ModulePath,
        x: &Tensor,
        body: impl Fn(&Forward, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        for hooks in &self.hooks {
            if self.is_again {
                hooks.enter_recompute(path, x)?;
            } else {
                hooks.enter_forward(path, x)?;
            }
            if let Some(tape) = &self.tape {
                let (hooks, path) = (hooks.clone(), path.clone());
                tape.mark_gradient(x, move |grad| hooks.exit_backward(&path, grad.as_ref()));
            }
        }
        let output = body(self, x)?;
        // The tape is walked backwards: the outermost, noted last, comes first.
        for hooks in self.hooks.iter().rev() {
            if let Some(tape) = &self.tape {
                let (hooks, path) = (hooks.clone(), path.clone());
                tape.mark_gradient(&output, move |grad| {
                    hooks.enter_backward(&path, grad.as_ref())
                });
            }
            if self.is_again {
                hooks.exit_recompute(path, &output)?;
            } else {
                hooks.exit_forward(path, &output)?;
            }
        }
        Ok(output)
    }

    /// Runs the module off the tape and leaves one node there, which runs it again.
    fn recomputed(
        &self,
        tape: &Tape,
        path: &ModulePath,
        x: &Tensor,
        body: impl Fn(&Forward, &Tensor) -> Result<Tensor> + Send + 'static,
    ) -> Result<Tensor> {
        let used = Arc::default();
        let off_tape = Self {
            tape: None,
            recompute: None,
            used: Some(Arc::clone(&used)),
            ..self.clone()
        };
        let output = off_tape.hooked(path, &x.detach(), &body)?;
        let used = std::mem::take(&mut *used.lock().expect("no panic while collecting"));
        let path = path.clone();
        // The pass is captured without its tape, which would hold itself alive.
        let again = move |tape: &Tape, x: &Tensor| {
            let fwd = Self {
                tape: Some(tape.clone()),
                is_again: true,
                used: None,
                ..off_tape
            };
            Ok(fwd.hooked(&path, x, body)?)
        };
        Ok(tape.recompute(x, &used, output, again)?)
    }

    /// What to draw one's own random numbers from, with [`Tensor::rand`](tt_tensor::Tensor::rand) for one: a function of the
    /// run's seed, the step, the micro-batch and `name`, so that a run that goes on draws what it would have drawn. Outside
    /// training it is the same in every pass.
    pub fn seed(&self, name: &str) -> Seed {
        let pass = self.seed.unwrap_or(Seed::new(0));
        pass.fold_str("drawn").fold_str(name)
    }

    /// Dropout of the module at `path`; nothing happens outside training.
    pub fn dropout(&self, path: &ModulePath, x: Tensor, p: f32) -> Result<Tensor> {
        match self.seed {
            Some(seed) if p > 0.0 => {
                let key = seed.fold_str(path.as_str()).key();
                Ok(fused::dropout(&x, p, key)?)
            }
            _ => Ok(x),
        }
    }
}
