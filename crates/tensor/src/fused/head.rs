//! The last linear layer of a language model, as losses take it: `logits = hidden . weight^T + bias`.
//!
//! Shapes: `hidden` `[.., D]`, `weight` `[V, D]`, `bias` `[V]`. A weight alone serves as a head wherever one is asked for.

use candle_core::DType;

use crate::error::{Error, Result};
use crate::fused::linear::{WeightLayout, linear_to};
use crate::fused::{dense, expect_shape};
use crate::tensor::Tensor;

/// Weight `[V, D]` and, if it has one, bias `[V]` of the layer that makes logits.
#[derive(Clone, Debug)]
pub struct Head {
    /// `[V, D]`.
    pub weight: Tensor,
    /// `[V]`.
    pub bias: Option<Tensor>,
}

impl From<Tensor> for Head {
    fn from(weight: Tensor) -> Self {
        Self { weight, bias: None }
    }
}

impl Head {
    /// Hidden states and weight for a loss that knows no bias, both dense: the bias becomes a column of the weight, which
    /// meets a column of ones. Errors: a bias of another shape than `[V]`.
    pub(super) fn without_bias(
        self,
        op: &'static str,
        hidden: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (hidden, weight) = (dense(op, hidden)?, dense(op, &self.weight)?);
        let Some(bias) = self.bias else {
            return Ok((hidden, weight));
        };
        let [outputs, _] = weight.dims_of(op)?;
        expect_shape(op, &bias, &[outputs])?;
        let column = bias.to_dtype(weight.dtype)?.reshape((outputs, 1))?;
        let Some(last) = hidden.rank().checked_sub(1) else {
            return Err(Error::shapes(op, hidden.shape(), weight.shape()));
        };
        let mut dims = hidden.dims().to_vec();
        dims[last] = 1;
        let ones = Tensor::ones(dims, hidden.device)?.to_dtype(hidden.dtype)?;
        let hidden = Tensor::cat(&[hidden, ones], last)?; // [.., D + 1]
        Ok((hidden, Tensor::cat(&[weight, column], 1)?))
    }
}

/// What a model's head says of `hidden` `[.., D]`: f32 `[.., V]`, not rounded to the type of `hidden`.
pub fn logits(hidden: &Tensor, head: &(impl Into<Head> + Clone)) -> Result<Tensor> {
    let Head { weight, bias } = head.clone().into();
    linear_to(
        DType::F32,
        hidden,
        &weight,
        bias.as_ref(),
        WeightLayout::OutIn,
    )
}
