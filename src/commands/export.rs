//! `tpu-train export`: a trained model as a folder for other programs, in Hugging Face layout, or peft's for an adapter.
//!
//! Merging adds `s B A` to the weights of the base, in f32, and rounds once to the number format asked for.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use half::{bf16, f16};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tt_checkpoint::{
    CheckpointConfig, Dtype, Error, HostTensor, LazyTensor, SavedAdapter, Snapshot, TensorSource,
    Weights,
};
use tt_config::Diagnostics;
use tt_tensor::DType;

use crate::device::DeviceConfig;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::hub::{self, Need};
use crate::setup::stored::Stored;

/// The root config of `export`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportConfig {
    /// A run folder, whose newest checkpoint is taken, any folder in Hugging Face or peft layout, or `user/name@revision` on
    /// the Hub.
    checkpoint: String,
    /// The model that an adapter is on, named in the same way, if it is not where the adapter says.
    base: Option<String>,
    /// The folder to make.
    out: PathBuf,
    /// Writes a whole model: the base's weights with the adapter added to them.
    merge: bool,
    /// Number format of the weights; null keeps the one they are in.
    dtype: Option<Format>,
    /// What it runs on.
    device: DeviceConfig,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    F32,
    Bf16,
    F16,
}

pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    invocation.composition.extract::<ExportConfig>("").map(drop)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: ExportConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    let exported = if config.merge {
        merged(&config, &invocation)
    } else {
        as_it_is(&config)
    };
    let mut snapshot = exported.map_err(Failure::Request)?;
    // Other programs ask the base of an adapter.
    if snapshot.adapter_config.is_null() && snapshot.config.is_null() {
        return Err(Failure::Request(anyhow!("there is no config.json")));
    }
    name_format(&mut snapshot);
    let max_shard_bytes = CheckpointConfig::default().max_shard_bytes.get();
    tt_checkpoint::save_model(&config.out, snapshot, max_shard_bytes).map_err(|error| {
        match error {
            // What is asked for cannot be had of these weights.
            Error::Source { source, .. } => Failure::Request(anyhow!(source)),
            error => Failure::run(error),
        }
    })?;
    out::line(format!("wrote {}", config.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Each tensor is read, or merged, when it is written: no two are held.
type Exported = Snapshot<LazyTensor<'static>>;

/// The folder without the trainer's state.
fn as_it_is(config: &ExportConfig) -> anyhow::Result<Exported> {
    let folder = hub::local(&config.checkpoint, Need::Weights)?;
    let files = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let mut snapshot = described(&files)?;
    let weights = match SavedAdapter::open(&folder)? {
        Some(saved) => {
            if saved.config["base_model_name_or_path"].is_null() {
                out::error_line(
                    "warning: the adapter's base was drawn from a seed, so that no other program has it: --merge writes both",
                );
            }
            snapshot.adapter_config = saved.config;
            saved.weights
        }
        None => Weights::open(&folder)?,
    };
    let weights = Arc::new(weights);
    for name in weights.names() {
        let (shape, stored_dtype) = (weights.shape(name), weights.dtype(name));
        let shape = shape.unwrap_or_default().to_vec();
        let (from, key, format) = (weights.clone(), name.to_owned(), config.dtype);
        let dtype = match format {
            None => stored_dtype.context("a tensor without a type")?,
            Some(format) => format.dtype(),
        };
        let tensor = LazyTensor::new(dtype, shape.clone(), move || {
            let Some(format) = format else {
                return Ok(from.read(&key)?);
            };
            let mut values = Vec::new();
            from.read_f32(&key, &mut values)?;
            Ok(format.tensor(&key, &shape, &values)?)
        });
        snapshot.model.insert(name.to_owned(), tensor);
    }
    Ok(snapshot)
}

/// The base with the adapter added to it.
fn merged(config: &ExportConfig, invocation: &Invocation) -> anyhow::Result<Exported> {
    let (checkpoint, base) = (&config.checkpoint, config.base.as_deref());
    let device = config.device.device()?;
    let stored = Stored::open(checkpoint, base, &invocation.plugins, device)?;
    if stored.adapter.is_none() {
        bail!(
            "{} is a whole model: there is no adapter to merge",
            stored.folder.display()
        );
    }
    let base_weights = match &stored.base_weights {
        Some(path) => Some(Weights::open(path)?),
        None => None,
    };
    let snapshot = described(&|name| stored.file(name))?;
    let (names, stored) = (stored.model.tensor_names(), Arc::new(stored));
    let tensors = stored.model.params().into_iter().map(|spec| {
        let of_base = base_weights.as_ref().and_then(|weights| {
            let name = names.found(&spec.path, |name| weights.contains(name));
            weights.dtype(&name)
        });
        let format = config.dtype.unwrap_or(Format::of(of_base));
        let (of, shape, path) = (stored.clone(), spec.shape.clone(), spec.path.clone());
        let tensor = LazyTensor::new(format.dtype(), spec.shape, move || {
            Ok(format.tensor(&path, &shape, &merged_values(&of, &path)?)?)
        });
        (names.saved(&spec.path), tensor)
    });
    Ok(Snapshot {
        model: tensors.collect(),
        ..snapshot
    })
}

fn merged_values(stored: &Stored, path: &str) -> anyhow::Result<Vec<f32>> {
    let value = stored.params.get(path)?.value().to_dtype(DType::F32)?;
    let layer = path.strip_suffix(".weight").unwrap_or_default();
    let lora = stored.adapter.as_ref();
    let delta = lora.map(|lora| lora.delta(layer, &stored.params));
    Ok(match delta.transpose()?.flatten() {
        Some(delta) => value.add(&delta)?.to_vec()?,
        None => value.to_vec()?,
    })
}

/// Configs and tokenizer; `file` finds each by its name.
fn described(file: &dyn Fn(&str) -> Option<PathBuf>) -> anyhow::Result<Exported> {
    /// What `AutoTokenizer` reads.
    const ASSETS: &[&str] = &[
        "added_tokens.json",
        "chat_template.jinja",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    ];
    let json = |name| match file(name) {
        Some(path) => tt_disk::read_json(&path).map(Some),
        None => Ok(None),
    };
    Ok(Snapshot {
        config: json("config.json")?.unwrap_or_default(),
        generation_config: json("generation_config.json")?.unwrap_or_default(),
        assets: ASSETS.iter().filter_map(|name| file(name)).collect(),
        ..Snapshot::default()
    })
}

/// Has the config say what the weights are in, if they are all in one format.
fn name_format(snapshot: &mut Exported) {
    let mut dtypes = snapshot.model.values().map(TensorSource::dtype);
    let Some(first) = dtypes
        .next()
        .filter(|first| dtypes.all(|other| other == *first))
    else {
        return;
    };
    if let (Value::Object(config), true) = (&mut snapshot.config, snapshot.adapter_config.is_null())
    {
        config.remove("dtype"); // transformers 5's name for it
        config.insert(
            "torch_dtype".to_owned(),
            Format::of(Some(first)).name().into(),
        );
    }
}

impl Format {
    /// That of stored weights; f32 for what is not stored, or in no format of ours.
    fn of(dtype: Option<Dtype>) -> Self {
        match dtype {
            Some(Dtype::BF16) => Self::Bf16,
            Some(Dtype::F16) => Self::F16,
            _ => Self::F32,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        }
    }

    /// Error: a finite value would be infinite in this format.
    fn tensor(self, name: &str, shape: &[usize], values: &[f32]) -> anyhow::Result<HostTensor> {
        let rounded: fn(f32) -> f32 = match self {
            Self::F32 => |x| x,
            Self::Bf16 => |x| bf16::from_f32(x).to_f32(),
            Self::F16 => |x| f16::from_f32(x).to_f32(),
        };
        let overflows = |x: &&f32| x.is_finite() && rounded(**x).is_infinite();
        if let Some(value) = values.iter().find(overflows) {
            bail!(
                "the tensor `{name}` holds {value}, which is infinite as {}; dtype=f32 keeps it",
                self.name()
            );
        }
        Ok(match self {
            Self::F32 => HostTensor::from_f32(shape, values),
            Self::Bf16 => HostTensor::from_f32_as_bf16(shape, values),
            Self::F16 => HostTensor::from_f32_as_f16(shape, values),
        })
    }
}
