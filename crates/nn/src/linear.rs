//! A linear layer: `y = x W^T + b`, weight `[out, in]` as in Hugging Face checkpoints, or `[in, out]` as in GPT-2's.

use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

/// A linear layer, `x W^T + b`; see [`Linear::forward`] for shapes.
#[derive(Clone, Debug)]
pub struct Linear {
    path: ModulePath,
    inputs: usize,
    outputs: usize,
    bias: bool,
    in_out: bool,
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
            in_out: false,
            std: 0.02,
        }
    }

    /// The same with a bias `[out]`, 0 at the start.
    pub fn with_bias(self) -> Self {
        Self { bias: true, ..self }
    }

    /// Keeps the weight as `[in, out]`: transformers' `Conv1D`.
    pub fn with_weight_in_out(self) -> Self {
        Self {
            in_out: true,
            ..self
        }
    }

    /// Initial weights are normal with this standard deviation.
    pub fn with_std(self, std: f32) -> Self {
        Self { std, ..self }
    }

    /// Its parameters: `weight`, and `bias` if it has one.
    pub fn params(&self) -> Vec<ParamSpec> {
        let (shape, kind) = if self.in_out {
            (vec![self.inputs, self.outputs], ParamKind::LinearInOut)
        } else {
            (vec![self.outputs, self.inputs], ParamKind::Linear)
        };
        let mut params = vec![ParamSpec {
            path: self.path.join("weight").to_string(),
            shape,
            init: Init::Normal { std: self.std },
            kind,
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
        let bias = if self.bias {
            Some(fwd.param(&self.path, "bias")?)
        } else {
            None
        };
        let x = &x.to_dtype(fwd.precision().dtype())?;
        let y = if self.in_out {
            fused::linear_in_out(x, &weight, bias.as_ref())?
        } else {
            fused::linear(x, &weight, bias.as_ref())?
        };
        match fwd.adapter() {
            Some(adapter) => adapter.linear(fwd, &self.path, x, y),
            None => Ok(y),
        }
    }
}
