//! Normalisation over the last dim: by the root mean square ([`RmsNorm`]), or by mean and deviation ([`LayerNorm`]).
//!
//! Shapes: `x` `[.., dim]` to the same, in the precision of the pass: a product comes next. Weights are `[dim]`.

use tt_tensor::{DType, Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

/// `x / rms(x) * weight`; `eps` is added to the mean square.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    path: ModulePath,
    dim: usize,
    eps: f64,
}

impl RmsNorm {
    /// Over a last dim of `dim`; `eps` is added under the root.
    pub fn new(path: ModulePath, dim: usize, eps: f64) -> Self {
        Self { path, dim, eps }
    }

    /// Its parameter, `weight` `[dim]`, of ones.
    pub fn params(&self) -> Vec<ParamSpec> {
        vec![ParamSpec {
            path: self.path.join("weight").to_string(),
            shape: vec![self.dim],
            init: Init::Ones,
            kind: ParamKind::Vector,
        }]
    }

    /// `x` `[.., dim]` to the same shape, in the precision of the pass: a product comes next.
    pub fn forward(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "RmsNorm", x, move |fwd, x| {
            let weight = fwd.param(&this.path, "weight")?;
            Ok(fused::rms_norm(
                x,
                &weight,
                this.eps as f32,
                fwd.precision().dtype(),
            )?)
        })
    }
}

/// `(x - mean) / sqrt(var + eps) * weight + bias`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    path: ModulePath,
    dim: usize,
    eps: f64,
}

impl LayerNorm {
    /// Over a last dim of `dim`; `eps` is added under the root.
    pub fn new(path: ModulePath, dim: usize, eps: f64) -> Self {
        Self { path, dim, eps }
    }

    /// `weight` and `bias`, `[dim]` both.
    pub fn params(&self) -> Vec<ParamSpec> {
        let spec = |name, init| ParamSpec {
            path: self.path.join(name).to_string(),
            shape: vec![self.dim],
            init,
            kind: ParamKind::Vector,
        };
        vec![spec("weight", Init::Ones), spec("bias", Init::Zeros)]
    }

    /// `x` `[.., dim]` to the same shape, in the precision of the pass.
    pub fn forward(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        self.forward_to(fwd, x, fwd.precision().dtype())
    }

    /// The same, in f32: where the result is the residual stream itself, as in BERT.
    pub fn forward_f32(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        self.forward_to(fwd, x, DType::F32)
    }

    fn forward_to(&self, fwd: &Forward, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "LayerNorm", x, move |fwd, x| {
            let weight = fwd.param(&this.path, "weight")?;
            let bias = fwd.param(&this.path, "bias")?;
            let eps = this.eps as f32;
            Ok(fused::layer_norm(x, &weight, &bias, eps, dtype)?)
        })
    }
}
