//! Keys and values of the tokens that a model has seen, so that generation need not read them again.
//!
//! Contract of a module that looks at earlier tokens: if the pass has a cache, it hands its new keys and values to
//! [`KvCache::extend`] under its own path, once a pass, and looks at all that it gets back. `x` then holds only the new
//! tokens, at positions that count on from those in the cache (the model's input says so). [`attend`](crate::attend())
//! does it all; a module that makes scores of its own does it by hand:
//!
//! ```
//! use tt_nn::{Forward, KvCache, ModulePath, ParamTree};
//! use tt_tensor::{Device, Seed, Tensor};
//!
//! # fn main() -> tt_nn::Result<()> {
//! # let params = ParamTree::init(&[], Seed::new(0), Device::Cpu)?;
//! # let path = ModulePath::root().join("attention");
//! # let new = |tokens| Tensor::ones((1, tokens, 2, 4), Device::Cpu);
//! let cache = KvCache::new();
//! let fwd = Forward::inference(&params).with_cache(&cache);
//! for tokens in [3, 1] {
//!     let (k, v) = (new(tokens)?, new(tokens)?); // [B, T, Hkv, D]
//!     let (k, v) = match fwd.cache() {
//!         Some(cache) => cache.extend(&path, k, v)?, // [B, seen + T, Hkv, D]
//!         None => (k, v),
//!     };
//!     assert_eq!(k.dims()[1], cache.len());
//!     # let _ = v;
//! }
//! assert_eq!(cache.len(), 4);
//! # Ok(())
//! # }
//! ```

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
    /// A cache of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of cached positions.
    pub fn len(&self) -> usize {
        let modules = self.modules();
        let mut lengths = modules.values().map(|(keys, _)| keys.dims()[1]);
        lengths.next().unwrap_or(0)
    }

    /// Whether no module has kept anything in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of modules that hold `positions` positions; `None` if one holds more or fewer.
    pub fn modules_with(&self, positions: usize) -> Option<usize> {
        let modules = self.modules();
        let mut lengths = modules.values().map(|(keys, _)| keys.dims()[1]);
        let all = lengths.all(|length| length == positions);
        all.then_some(modules.len())
    }

    /// Appends the new keys and values of `module`, `[B, T, Hkv, D]` both, and returns all of them, the oldest first.
    /// Error: they do not fit those that are there.
    pub fn extend(&self, module: &ModulePath, k: Tensor, v: Tensor) -> Result<KeysValues> {
        let mut modules = self.modules();
        let all = match modules.get(module).cloned() {
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
