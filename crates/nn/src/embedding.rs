//! A table of vectors by token id, which may also serve as the model's output head.

use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

#[derive(Clone, Debug)]
pub struct Embedding {
    path: ModulePath,
    rows: usize,
    dim: usize,
    std: f32,
}

impl Embedding {
    pub fn new(path: ModulePath, rows: usize, dim: usize, std: f32) -> Self {
        Self {
            path,
            rows,
            dim,
            std,
        }
    }

    pub fn params(&self) -> Vec<ParamSpec> {
        vec![ParamSpec {
            path: self.path.join("weight").to_string(),
            shape: vec![self.rows, self.dim],
            init: Init::Normal { std: self.std },
            kind: ParamKind::Embedding,
        }]
    }

    /// `ids` `[.., ]` u32 to `[.., dim]`.
    pub fn forward(&self, fwd: &Forward, ids: &Tensor) -> Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "Embedding", ids, move |fwd, ids| {
            Ok(fused::embedding(&this.weight(fwd)?, ids)?)
        })
    }

    /// The table `[rows, dim]`.
    pub fn weight(&self, fwd: &Forward) -> Result<Tensor> {
        fwd.param(&self.path, "weight")
    }
}
