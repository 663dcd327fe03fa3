//! A model's parameters from a checkpoint's tensors.

use tt_checkpoint::{Allow, Weights};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Device, Tensor};

use crate::error::{Error, Result};

/// Loads every parameter of `model`, as f32. Errors: every missing, unexpected or misshapen tensor at once.
pub fn load_params(model: &dyn Model, weights: &Weights, device: Device) -> Result<ParamTree> {
    load_params_with(model, weights, device, |_, value| Ok(value))
}

/// Like [`load_params`], each value changed by `hold` before the next is read.
pub(crate) fn load_params_with(
    model: &dyn Model,
    weights: &Weights,
    device: Device,
    hold: impl Fn(&ParamSpec, Tensor) -> tt_tensor::Result<Tensor>,
) -> Result<ParamTree> {
    let specs = model.params();
    let expected = specs.iter().map(|s| (s.path.as_str(), s.shape.as_slice()));
    weights.check(expected, &Allow::BUFFERS).map_err(Box::new)?;
    let mut values = Vec::new();
    let mut failed = None;
    let params = ParamTree::build(&specs, |spec| {
        if let Err(error) = weights.read_f32(&spec.path, &mut values) {
            // ParamTree knows no files: hold the error back and let the tree end early.
            failed.get_or_insert(error);
            values.clear();
        }
        let value = Tensor::from_slice(&values, spec.shape.clone(), device)?;
        Ok(hold(spec, value)?)
    });
    match failed {
        Some(error) => Err(Error::Checkpoint(error)),
        None => Ok(params?),
    }
}
