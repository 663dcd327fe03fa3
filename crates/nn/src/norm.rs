//! Root-mean-square normalisation over the last dim, with a learned scale.

use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

#[derive(Clone, Debug)]
pub struct RmsNorm {
    path: ModulePath,
    dim: usize,
    eps: f64,
}

impl RmsNorm {
    pub fn new(path: ModulePath, dim: usize, eps: f64) -> Self {
        Self { path, dim, eps }
    }

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
