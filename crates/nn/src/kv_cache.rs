//! Keys and values of the tokens that a model has seen, so that generation need not read them again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tt_tensor::Tensor;

use crate::error::Result;
use crate::path::ModulePath;

/// Keys and values `[B, T, Hkv, D]` of each attention module. Cloning gives another handle to the same cache.
#[derive(Clone, Default)]
pub struct KvCache(Arc<Mutex<HashMap<ModulePath, KeysValues>>>);

type KeysValues = (Tensor, Tensor);

impl KvCache {
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of cached positions.
    pub fn len(&self) -> usize {
        let modules = self.modules();
        modules
            .values()
            .next()
            .map_or(0, |(keys, _)| keys.dims()[1])
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a module's new keys and values and returns all of them.
    pub(crate) fn extend(&self, module: &ModulePath, k: Tensor, v: Tensor) -> Result<KeysValues> {
        let mut modules = self.modules();
        let all = match modules.remove(module) {
            None => (k, v),
            Some((keys, values)) => (Tensor::cat(&[keys, k], 1)?, Tensor::cat(&[values, v], 1)?),
        };
        modules.insert(module.clone(), all.clone());
        Ok(all)
    }

    fn modules(&self) -> MutexGuard<'_, HashMap<ModulePath, KeysValues>> {
        self.0.lock().expect("no panic while extending")
    }
}
