//! Functions between the layers of a feed-forward block, by the names of Hugging Face's `config.json`.

use tt_tensor::{DType, Tensor};

use crate::error::Result;

/// An element-wise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `gelu`: by the error function.
    Gelu,
    /// `gelu_new`, `gelu_pytorch_tanh`: by the hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `silu`, `swish`.
    Silu,
}

impl Activation {
    /// The function that `hidden_act` or `activation_function` names; `None` for a name that is not known.
    pub fn from_hf(name: &str) -> Option<Self> {
        Some(match name {
            "gelu" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Self::GeluTanh,
            "relu" => Self::Relu,
            "silu" | "swish" => Self::Silu,
            _ => return None,
        })
    }

    /// `x` of any shape to the same, computed in f32 and of `x`'s type.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        let composed = |f: fn(&Tensor) -> tt_tensor::Result<Tensor>| {
            f(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
        };
        Ok(match self {
            Self::Gelu => x.gelu()?,
            Self::GeluTanh => x.gelu_tanh()?,
            Self::Relu => composed(Tensor::relu)?,
            Self::Silu => composed(Tensor::silu)?,
        })
    }
}
