//! A linear layer: `y = x W^T + b`, weight `[out, in]` as in Hugging Face checkpoints.

use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

#[derive(Clone, Debug)]
pub struct Linear {
    path: ModulePath,
    inputs: usize,
    outputs: usize,
    bias: bool,
    std: f32,
}

impl Linear {
    /// Without bias, weights normal with standard deviation 0.02.
    pub fn new(path: ModulePath, inputs: usize, outputs: usize) -> Self {
        Self {
            path,
            inputs,
            outputs,
            bias: false,
            std: 0.02,
        }
    }

    pub fn with_bias(self) -> Self {
        Self { bias: true, ..self }
    }

    pub fn with_std(self, std: f32) -> Self {
        Self { std, ..self }
    }

    pub fn params(&self) -> Vec<ParamSpec> {
        let mut params = vec![ParamSpec {
            path: self.path.join("weight").to_string(),
            shape: vec![self.outputs, self.inputs],
            init: Init::Normal { std: self.std },
            kind: ParamKind::Linear,
        }];
        if self.bias {
            params.push(ParamSpec {
                path: self.path.join("bias").to_string(),
                shape: vec![self.outputs],
                init: Init::Zeros,
                kind: ParamKind::Vector,
            });
        }
        params
    }

    /// `x` `[.., in]` to `[.., out]`, in the precision of the pass.
    pub fn forward(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "Linear", x, move |fwd, x| this.body(fwd, x))
    }

    fn body(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        let weight = fwd.param(&self.path, "weight")?;
        let bias = match self.bias {
            true => Some(fwd.param(&self.path, "bias")?),
            false => None,
        };
        let x = &x.to_dtype(fwd.precision().dtype())?;
        let y = fused::linear(x, &weight, bias.as_ref())?;
        match fwd.adapter() {
            Some(adapter) => adapter.linear(fwd, &self.path, x, y),
            None => Ok(y),
        }
    }
}
