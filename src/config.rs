//! The typed configuration: the root of `tpu-train`.
//!
//! A field's comment is its documentation. The groups have their types beside what they configure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_adapters::LoraConfig;
use tt_config::{Composition, Diagnostics};
use tt_data::DataConfig;
use tt_dist::{Mesh, MeshAxes};
use tt_metrics::LoggingConfig;
use tt_remat::RematConfig;
use tt_sharding::ShardingConfig;
use tt_train::{ProfileConfig, TrainerConfig};

use crate::commands::bench::config::BenchConfig;
use crate::device::DeviceConfig;
use crate::ranks;
use crate::sweep::config::SweepConfig;

/// The whole configuration of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AppConfig {
    /// Peak learning rate, which the optimizer's config refers to. Kept here so that `lr=5e-5` sets it.
    #[schemars(range(min = 0.0))]
    #[expect(dead_code, reason = "read through the interpolation ${lr}")]
    #[serde(default)]
    lr: Option<f64>,
    /// Decides initial weights, the order of the data and dropout.
    #[serde(default)]
    pub(crate) seed: u64,
    /// Number format of matrix products and attention, and of the activations between them. Weights, their gradients,
    /// optimizer state, norms, softmax and the loss are float32 in every precision.
    #[serde(default)]
    pub(crate) precision: Precision,
    /// `auto` continues an unfinished run of the same config, `none` starts afresh; else a run folder or a checkpoint.
    #[serde(default = "default_resume")]
    pub(crate) resume: String,
    /// Runs of one project are shown together by trackers.
    #[serde(default)]
    pub(crate) project: Option<String>,
    /// What to call the run.
    pub(crate) name: Option<String>,
    /// Anything worth remembering about the run.
    pub(crate) notes: Option<String>,
    /// Prints errors in full, for a report of a bug.
    #[serde(default)]
    pub(crate) debug: bool,
    /// The model.
    #[serde(rename = "model")]
    _model: Option<ModelConfig>,
    /// How it is trained.
    pub(crate) trainer: Option<TrainerConfig>,
    /// What it is trained on.
    pub(crate) data: DataConfig,
    /// What is shown.
    #[serde(default)]
    pub(crate) logging: LoggingConfig,
    /// What it runs on.
    #[serde(default)]
    pub(crate) device: DeviceConfig,
    /// How the ranks of a host are arranged. The product with `dcn_mesh` is the number of ranks; -1, for one axis of both: as
    /// many as are left of `device.ranks`.
    #[serde(default)]
    pub(crate) ici_mesh: MeshAxes,
    /// How hosts are arranged.
    #[serde(default)]
    pub(crate) dcn_mesh: MeshAxes,
    /// What ranks do about each other, and for `plan` what there is between them.
    #[serde(default)]
    pub(crate) dist: DistConfig,
    /// A trace of a few steps, chosen by `profile=chrome`; null: none.
    #[serde(default)]
    pub(crate) profile: Option<ProfileConfig>,
    /// How `bench` measures. `bench=s|m|l` chooses one of three shapes of model and batch to compare machines by.
    #[serde(default)]
    pub(crate) bench: BenchConfig,
    /// What `--multirun` does with its jobs.
    #[serde(default, rename = "sweep")]
    _sweep: SweepConfig,
}

impl AppConfig {
    /// Ranks of the run.
    pub(crate) fn num_ranks(&self) -> usize {
        ranks_of(&self.device, &self.ici_mesh, &self.dcn_mesh)
    }
}

/// The same of a configuration whose device is known, and may be all that is.
pub(crate) fn num_ranks(
    composition: &Composition,
    device: &DeviceConfig,
) -> Result<usize, Diagnostics> {
    let mesh = |key| composition.section(key).extract();
    Ok(ranks_of(device, &mesh("ici_mesh")?, &mesh("dcn_mesh")?))
}

fn ranks_of(device: &DeviceConfig, ici_mesh: &MeshAxes, dcn_mesh: &MeshAxes) -> usize {
    let asked = || match ranks::processes() {
        Some(processes) => processes.size(),
        None => Mesh::ranks_asked(ici_mesh, dcn_mesh),
    };
    device.ranks.unwrap_or_else(asked)
}

/// What all models have in common; the other keys are those of the type.
#[derive(Debug, Deserialize, JsonSchema)]
struct ModelConfig {
    /// What is run again in the backward pass, to save memory.
    #[serde(default, rename = "remat")]
    _remat: RematConfig,
    /// Which rank holds which part of a parameter, where there are several (`device.ranks`).
    #[serde(default, rename = "sharding")]
    #[schemars(with = "ShardingConfig")]
    _sharding: Map<String, Value>,
    /// Small weights to train on the frozen model, instead of the model; null: none.
    #[serde(default, rename = "adapter")]
    _adapter: Option<LoraConfig>,
    #[serde(flatten)]
    _of_its_type: Map<String, Value>,
}

/// What ranks do about each other, and for `plan` what there is between them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DistConfig {
    /// What carries weights and gradients from one rank to another. Sums differ by rounding.
    pub(crate) backend: Backend,
    /// A rank that others wait for longer than this has failed, and the run with it; null: never.
    #[schemars(range(min = 1))]
    pub(crate) timeout_seconds: Option<u64>,
    /// What a rank can send to others of its host (`ici_mesh`), and receive at the same time, in 10^9 bytes a second; null: not
    /// known. With `device.peak_tflops`, `plan` tells how long a step takes.
    pub(crate) ici_gb_per_second: Option<f64>,
    /// The same between hosts (`dcn_mesh`): for a rank, so where ranks of a host share a network card, each one's share of it.
    pub(crate) dcn_gb_per_second: Option<f64>,
    /// Microseconds that each message within a host takes besides its bytes.
    #[schemars(range(min = 0.0))]
    pub(crate) ici_latency_us: f64,
    /// The same between hosts.
    #[schemars(range(min = 0.0))]
    pub(crate) dcn_latency_us: f64,
}

impl Default for DistConfig {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            timeout_seconds: Some(600),
            ici_gb_per_second: None,
            dcn_gb_per_second: None,
            ici_latency_us: 0.0,
            dcn_latency_us: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    /// The hosts: MPI where ranks are processes, and memory where they are threads of one. What is on a TPU is copied to its
    /// host and back.
    #[default]
    Host,
    /// The links between the TPUs of one machine, 2, 4 or 8 of them, with the vendor's collectives: what all ranks share.
    /// The rest goes over the hosts.
    C2c,
}

fn default_resume() -> String {
    "auto".to_owned()
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Precision {
    /// Single precision throughout.
    #[default]
    F32,
    /// Products of bfloat16 numbers, summed in float32: less memory, and faster where the machine multiplies them.
    Bf16,
    /// Products of half-precision numbers, summed in float32; the loss is scaled (`trainer.loss_scale`).
    Fp16,
}

impl From<Precision> for tt_tensor::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
            Precision::Fp16 => Self::F16,
        }
    }
}
