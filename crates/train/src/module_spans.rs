//! Spans of modules in a trace, forward and backward, which lie within one another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tt_nn::{Hooks, ModulePath};
use tt_tensor::Tensor;
use tt_tensor::profile::{self, Span};

use crate::device_memory::{MemoryRecord, Moment};

/// Makes spans of modules, which lie within one another, and looks at the memory between them.
pub(crate) struct ModuleSpans {
    open: Mutex<Vec<Span>>,
    memory: Option<Arc<MemoryRecord>>,
}

impl ModuleSpans {
    pub(crate) fn new(memory: Option<Arc<MemoryRecord>>) -> Self {
        Self {
            open: Mutex::default(),
            memory,
        }
    }

    fn enter(&self, kind: &'static str, module: &ModulePath) {
        let span = profile::span(kind, || match module.as_str() {
            "" => "model".to_owned(),
            path => path.to_owned(),
        });
        self.spans().push(span);
        self.look();
    }

    fn exit(&self) {
        self.look();
        drop(self.spans().pop());
    }

    fn look(&self) {
        if let Some(memory) = &self.memory {
            memory.sample(Moment::InPass);
        }
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Span>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hooks for ModuleSpans {
    fn enter_forward(&self, module: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.enter("module", module);
        Ok(())
    }

    fn exit_forward(&self, _: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.exit();
        Ok(())
    }

    fn enter_backward(&self, module: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.enter("module backward", module);
        Ok(())
    }

    fn exit_backward(&self, _: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.exit();
        Ok(())
    }
}
