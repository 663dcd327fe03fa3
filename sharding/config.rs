//! `model.sharding`, in the format of easy-torch-tpu.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_dist::Axis;

/// `model.sharding`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ShardingConfig {
    /// Kept for the YAML of easy-torch-tpu, where it is `spmd`; without effect.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// When parameters that are shared out are made whole, and for how long.
    pub gather: Gather,
    /// With `gather: block`, whether the next block is made whole while one runs: two are whole at once.
    pub prefetch: bool,
    /// When gradients are summed over ranks, and all but the own part of them is dropped.
    pub reduce: Sums,
    /// The axis, or list of axes, that shares out the first dim of each parameter that no path names; null: none, each rank
    /// holds the whole.
    pub every: Option<AxisNames>,
    /// By path of a parameter, `*` for any one part: for each dim the axis or list of axes that shares it out, or null.
    #[serde(flatten)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub paths: BTreeMap<String, Option<Vec<Option<AxisNames>>>>,
}

/// An axis of the mesh, or several that are taken together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AxisNames {
    /// `fsdp`
    One(String),
    /// `[data, fsdp]`
    Several(Vec<String>),
}

impl AxisNames {
    /// Error: a name that no axis has.
    pub(crate) fn axes(&self) -> Result<Vec<Axis>, String> {
        let names = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        };
        let axis = |name: &String| {
            let mut all = Axis::ALL.into_iter();
            all.find(|axis| axis.name() == name).ok_or(name.clone())
        };
        names.iter().map(axis).collect()
    }
}

/// When parameters are made whole, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gather {
    /// With the first use in a step, until the optimizer steps: as much memory for weights as without sharding.
    #[default]
    Step,
    /// Those of a block when it is entered, until it is left, in both directions; the others for a micro-batch.
    Block,
}

/// When gradients are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sums {
    /// Once, after the last micro-batch: as much memory for gradients as without sharding.
    #[default]
    Step,
    /// Each as soon as it is complete, in every micro-batch.
    MicroBatch,
}
