//! Tables of vectors: by token id ([`Embedding`]), which may also serve as the model's output head, and by position
//! ([`PositionEmbedding`]).

use tt_tensor::{Tensor, fused};

use crate::error::{Error, Result};
use crate::forward::{Forward, Positions};
use crate::param_tree::{Init, ParamKind, ParamSpec};
use crate::path::ModulePath;

/// A table `[rows, dim]`, looked up by id.
#[derive(Clone, Debug)]
pub struct Embedding {
    path: ModulePath,
    rows: usize,
    dim: usize,
    std: f32,
}

impl Embedding {
    /// A table `[rows, dim]` at `path`, which begins normal with the standard deviation `std`.
    pub fn new(path: ModulePath, rows: usize, dim: usize, std: f32) -> Self {
        Self {
            path,
            rows,
            dim,
            std,
        }
    }

    /// Its parameter, `weight`.
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

/// Learned positions, added to what the tokens are: GPT-2's and BERT's.
#[derive(Clone, Debug)]
pub struct PositionEmbedding(Embedding);

impl PositionEmbedding {
    /// For sequences of at most `max_positions`.
    pub fn new(path: ModulePath, max_positions: usize, dim: usize, std: f32) -> Self {
        Self(Embedding::new(path, max_positions, dim, std))
    }

    /// `weight` `[max_positions, dim]`.
    pub fn params(&self) -> Vec<ParamSpec> {
        self.0.params()
    }

    /// `[B, T, dim]` at `positions`. Error: positions beyond those the model was made for.
    pub fn forward(&self, fwd: &Forward, positions: &Positions) -> Result<Tensor> {
        let (bound, max) = (positions.bound, self.0.rows);
        if bound > max {
            let positions = bound;
            return Err(Error::TooLong { positions, max });
        }
        self.0.forward(fwd, &positions.position_ids)
    }
}
