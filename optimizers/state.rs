//! What state tensors are kept in, and how they come back from a checkpoint.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tt_tensor::{DType, Shard, Tensor};

use crate::LoadSlot;
use crate::error::{Error, Result};

/// The number format of an optimizer's state. bf16 halves it; the step itself is always computed in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateDtype {
    /// Single precision.
    #[default]
    #[serde(rename = "f32", alias = "float32")]
    F32,
    /// Half the memory, with 8 bits of precision.
    #[serde(rename = "bf16", alias = "bfloat16")]
    Bf16,
}

impl JsonSchema for StateDtype {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "StateDtype".into()
    }

    // By hand, as derived schemas do not know aliases.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["f32", "bf16", "float32", "bfloat16"] })
    }
}

/// The largest decay of a mean that bf16 can hold. Each step takes the share `1 - beta` off, which rounding to 8 bits
/// undoes where it is under half a unit in the last place: the mean could grow but never fall.
pub(crate) const MAX_BF16_BETA: f64 = 0.995;

impl StateDtype {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// Refuses means too slow for the format.
    pub(crate) fn check(self, betas: &[f64]) -> std::result::Result<(), String> {
        match betas.iter().find(|beta| **beta > MAX_BF16_BETA) {
            Some(beta) if self == Self::Bf16 => Err(format!(
                "`state_dtype: bf16` rounds away what a decay of {beta} changes in a step: take at most {MAX_BF16_BETA}"
            )),
            _ => Ok(()),
        }
    }
}

/// The saved value of a slot, of which `current` is the part `shard`, in the number format of `current`. Error: another
/// shape.
pub(crate) fn restored(
    load: &mut LoadSlot,
    parameter: &str,
    slot: &'static str,
    shard: &Shard,
    current: &Tensor,
) -> Result<Tensor> {
    let saved = load(parameter, slot, shard)?;
    if saved.dims() != current.dims() {
        return Err(Error::State {
            parameter: parameter.to_owned(),
            slot,
            why: format!("{:?} instead of {:?}", saved.shape(), current.shape()),
        });
    }
    Ok(saved.to_dtype(current.dtype())?)
}
