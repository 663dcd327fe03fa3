//! The context of one forward pass: weights at the moment of use, the tape, randomness, hooks.
//!
//! A module calls [`Forward::module`] around its body, so that policies (gathering sharded weights,
//! offload, recomputation, profiling) can act where it is entered and left, in both directions.

use std::sync::Arc;

use tt_tensor::{Seed, Tape, Tensor, fused};

use crate::error::Result;
use crate::param_tree::ParamTree;
use crate::path::ModulePath;

/// What happens around modules. The backward pass enters a module where the forward pass left it.
pub trait Hooks: Send + Sync {
    fn enter_forward(&self, _module: &ModulePath) -> Result<()> {
        Ok(())
    }
    fn exit_forward(&self, _module: &ModulePath, _output: &Tensor) -> Result<()> {
        Ok(())
    }
    fn enter_backward(&self, _module: &ModulePath) -> tt_tensor::Result<()> {
        Ok(())
    }
    fn exit_backward(&self, _module: &ModulePath) -> tt_tensor::Result<()> {
        Ok(())
    }
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

/// One forward pass over the parameters of a model.
pub struct Forward<'a> {
    params: &'a ParamTree,
    tape: Option<&'a Tape>,
    /// Present while training: the stream that dropout draws from.
    seed: Option<Seed>,
    hooks: Option<Arc<dyn Hooks>>,
}

impl<'a> Forward<'a> {
    /// Without gradients and without dropout.
    pub fn inference(params: &'a ParamTree) -> Self {
        Self {
            params,
            tape: None,
            seed: None,
            hooks: None,
        }
    }

    /// Recorded on `tape`; `seed` is that of the micro-batch.
    pub fn training(params: &'a ParamTree, tape: &'a Tape, seed: Seed) -> Self {
        Self {
            params,
            tape: Some(tape),
            seed: Some(seed),
            hooks: None,
        }
    }

    pub fn with_hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }

    pub fn is_training(&self) -> bool {
        self.seed.is_some()
    }

    /// The weight `name` of the module at `path`, to be used now and not kept.
    pub fn param(&self, path: &ModulePath, name: &str) -> Result<Tensor> {
        let parameter = self.params.get(path.join(name).as_str())?;
        Ok(match self.tape {
            Some(tape) => tape.watch(parameter),
            None => parameter.value(),
        })
    }

    /// Runs the body of the module at `path` between its hooks.
    pub fn module(
        &self,
        path: &ModulePath,
        body: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let Some(hooks) = &self.hooks else {
            return body();
        };
        hooks.enter_forward(path)?;
        if let Some(tape) = self.tape {
            let (hooks, path) = (hooks.clone(), path.clone());
            tape.mark(move || hooks.exit_backward(&path));
        }
        let output = body()?;
        if let Some(tape) = self.tape {
            let (hooks, path) = (hooks.clone(), path.clone());
            tape.mark(move || hooks.enter_backward(&path));
        }
        hooks.exit_forward(path, &output)?;
        Ok(output)
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
