//! What is put on linear layers from outside the model, with weights of its own.
//!
//! A model's [`Linear`](crate::Linear) asks the parameters it is given for an adapter and lets it change what the layer
//! gives; which layers have one, and what it computes, is the adapter's affair.

use tt_tensor::Tensor;

use crate::error::Result;
use crate::forward::Forward;
use crate::path::ModulePath;

/// Changes what linear layers give. Its weights are in the same [`ParamTree`](crate::ParamTree) as the model's.
pub trait Adapter: Send + Sync {
    /// `x` `[.., in]` is what the linear layer at `layer` read and `y` `[.., out]` what it gives by itself; returns what
    /// it gives instead. A layer that is not adapted gives `y`.
    fn linear(&self, fwd: &Forward, layer: &ModulePath, x: &Tensor, y: Tensor) -> Result<Tensor>;
}
