//! `Parameter`: a named weight, changed in place by the optimizer, and the gradient gathered for it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use candle_core::Shape;

use crate::error::{Error, Result};
use crate::shard::Shard;
use crate::tensor::Tensor;

/// A weight by its dotted path, e.g. `model.layers.0.mlp.up_proj.weight`.
///
/// The tape keeps the parameter, not its tensor, so the tensor may be replaced between forward and
/// backward (gathered, offloaded, reloaded) as long as its values are back when a gradient needs them.
///
/// Where several ranks share a weight, each has a [`Shard`] of it. For a while the whole may be there too
/// ([`Parameter::gather`]): it is what is computed with then, and the gradient has its shape. What an optimizer steps is
/// the part, and so are its state and the gradient that it is given.
pub struct Parameter {
    path: String,
    shard: Shard,
    value: RwLock<Tensor>,
    /// While it is gathered.
    whole: RwLock<Option<Tensor>>,
    grad: Mutex<Option<Tensor>>,
    trainable: AtomicBool,
}

impl Parameter {
    /// A weight that is held whole.
    pub fn new(path: impl Into<String>, value: Tensor) -> Arc<Self> {
        let shard = Shard::whole(value.dims());
        Self::with_shard(path.into(), shard, value)
    }

    /// The part `shard` of a weight. Error: `value` does not have its local shape.
    pub fn sharded(path: impl Into<String>, shard: Shard, value: Tensor) -> Result<Arc<Self>> {
        let expected = Shape::from(shard.local_shape());
        if value.shape() != &expected {
            return Err(Error::shapes("sharded", &expected, value.shape()));
        }
        Ok(Self::with_shard(path.into(), shard, value))
    }

    fn with_shard(path: String, shard: Shard, value: Tensor) -> Arc<Self> {
        Arc::new(Self {
            path,
            shard,
            value: RwLock::new(value.detach()),
            whole: RwLock::new(None),
            grad: Mutex::new(None),
            trainable: AtomicBool::new(true),
        })
    }

    /// Where the model has it: `layers.0.mlp.up_proj.weight`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is computed with: the whole while it is gathered, else the part that is held here. It shares memory with the
    /// parameter: an optimizer step on the part shows through.
    pub fn value(&self) -> Tensor {
        let whole = self.whole.read().expect("no panic while replacing");
        whole.clone().unwrap_or_else(|| self.local())
    }

    /// The part that is held here.
    pub fn local(&self) -> Tensor {
        self.value.read().expect("no panic while replacing").clone()
    }

    /// Whether it has been given the whole.
    pub fn is_gathered(&self) -> bool {
        let whole = self.whole.read().expect("no panic while replacing");
        whole.is_some()
    }

    /// Takes the whole weight, to be computed with until it is released. Error: it does not have the logical shape.
    pub fn gather(&self, whole: Tensor) -> Result<()> {
        let expected = Shape::from(self.shard.shape());
        if whole.shape() != &expected {
            return Err(Error::shapes("gather", &expected, whole.shape()));
        }
        *self.whole.write().expect("no panic while replacing") = Some(whole.detach());
        Ok(())
    }

    /// Lets the whole go that [`Parameter::gather`] was given, if it is there.
    pub fn release(&self) {
        *self.whole.write().expect("no panic while replacing") = None;
    }

    /// Which part of the weight this is.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The local shape.
    pub fn shape(&self) -> Shape {
        self.local().shape().clone()
    }

    /// Replaces the part that is held here. Error: another shape or dtype.
    pub fn set(&self, value: Tensor) -> Result<()> {
        let mut current = self.value.write().expect("no panic while replacing");
        if current.dims() != value.dims() || current.dtype() != value.dtype() {
            let described = |it: &Tensor| format!("{:?} of {:?}", it.dims(), it.dtype());
            return Err(Error::Parameter {
                path: self.path.clone(),
                expected: described(&current),
                got: described(&value),
            });
        }
        *current = value.detach();
        Ok(())
    }

    /// Frozen parameters are not recorded and get no gradient.
    pub fn set_trainable(&self, trainable: bool) {
        self.trainable.store(trainable, Ordering::Relaxed);
    }

    /// Whether it is given gradients.
    pub fn is_trainable(&self) -> bool {
        self.trainable.load(Ordering::Relaxed)
    }

    /// The gradient gathered since it was last taken.
    pub fn grad(&self) -> Option<Tensor> {
        self.grad_slot().clone()
    }

    /// Puts another gradient in place of the one gathered, as clipping does.
    pub fn set_grad(&self, grad: Tensor) {
        *self.grad_slot() = Some(grad);
    }

    /// Takes the gradient, leaving none: the next backward pass starts afresh.
    pub fn take_grad(&self) -> Option<Tensor> {
        self.grad_slot().take()
    }

    pub(crate) fn grad_slot(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.grad.lock().expect("no panic while accumulating")
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter({}, {:?})", self.path, self.shape())
    }
}
