//! `tpu-train export`: a trained model as a folder for other programs, in Hugging Face layout, or peft's for an adapter.
//!
//! Merging adds `s B A` to the weights of the base, in f32, and rounds once to the number format asked for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tt_checkpoint::{
    CheckpointConfig, Dtype, HostTensor, SavedAdapter, Snapshot, TensorMap, Weights,
};
use tt_tensor::DType;
use tt_train::BaseOrigin;

use crate::commands::Invocation;
use crate::device::DeviceConfig;
use crate::failure::Failure;
use crate::out;
use crate::stored::{self, Stored, StoredAdapter, read_json};

/// The root config of `export`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportConfig {
    /// A run folder, whose newest checkpoint is taken, or any folder in Hugging Face or peft layout.
    checkpoint: String,
    /// The folder of the model that an adapter is on, if it is not where the adapter says.
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

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: ExportConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    let exported = match config.merge {
        true => merged(&config, &invocation),
        false => as_it_is(&config),
    };
    let mut snapshot = exported.map_err(Failure::Request)?;
    name_format(&mut snapshot);
    let max_shard_bytes = CheckpointConfig::default().max_shard_bytes.get();
    tt_checkpoint::save_model(&config.out, &snapshot, max_shard_bytes).map_err(Failure::run)?;
    out::line(format!("wrote {}", config.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// The folder without the trainer's state.
fn as_it_is(config: &ExportConfig) -> anyhow::Result<Snapshot> {
    let folder = stored::folder(Path::new(&config.checkpoint))?;
    let files = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let mut snapshot = described(&files)?;
    let weights = match SavedAdapter::open(&folder)? {
        Some(saved) => {
            if saved.config["base_model_name_or_path"].is_null() {
                eprintln!(
                    "warning: the adapter's base was drawn from a seed, so that no other program has it: --merge writes both"
                );
            }
            snapshot.adapter_config = saved.config;
            saved.weights
        }
        None => Weights::open(&folder)?,
    };
    for name in weights.names() {
        let tensor = match config.dtype {
            None => weights.read(name)?,
            Some(format) => {
                let mut values = Vec::new();
                weights.read_f32(name, &mut values)?;
                let shape = weights.shape(name).unwrap_or_default();
                format.tensor(shape, &values)
            }
        };
        snapshot.model.insert(name.to_owned(), tensor);
    }
    Ok(snapshot)
}

/// The base with the adapter added to it.
fn merged(config: &ExportConfig, invocation: &Invocation) -> anyhow::Result<Snapshot> {
    let (path, base) = (Path::new(&config.checkpoint), config.base.as_deref());
    let device = config.device.device()?;
    let stored = Stored::open(path, base, &invocation.plugins, device)?;
    let Some(adapter) = &stored.adapter else {
        bail!(
            "{} is a whole model: there is no adapter to merge",
            stored.folder.display()
        );
    };
    let base_weights = match &adapter.base {
        BaseOrigin::Pretrained(path) => Some(Weights::open(Path::new(path))?),
        BaseOrigin::Seed(_) => None,
    };
    let (names, mut model) = (stored.model.tensor_names(), TensorMap::new());
    for spec in stored.model.params() {
        let of_base = base_weights.as_ref().and_then(|weights| {
            let name = names.found(&spec.path, |name| weights.contains(name));
            weights.dtype(&name)
        });
        let format = config.dtype.unwrap_or(Format::of(of_base));
        let values = merged_values(&stored, adapter, &spec.path)?;
        model.insert(names.saved(&spec.path), format.tensor(&spec.shape, &values));
    }
    let snapshot = described(&|name| stored.file(name))?;
    Ok(Snapshot { model, ..snapshot })
}

fn merged_values(stored: &Stored, adapter: &StoredAdapter, path: &str) -> anyhow::Result<Vec<f32>> {
    let value = stored.params.get(path)?.value().to_dtype(DType::F32)?;
    let layer = path.strip_suffix(".weight").unwrap_or_default();
    Ok(match adapter.lora.delta(layer, &stored.params)? {
        Some(delta) => value.add(&delta)?.to_vec()?,
        None => value.to_vec()?,
    })
}

/// Configs and tokenizer; `file` finds each by its name.
fn described(file: &dyn Fn(&str) -> Option<PathBuf>) -> anyhow::Result<Snapshot> {
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
        Some(path) => read_json(&path).map(Some),
        None => Ok(None),
    };
    Ok(Snapshot {
        config: json("config.json")?.context("there is no config.json")?,
        generation_config: json("generation_config.json")?.unwrap_or_default(),
        assets: ASSETS.iter().filter_map(|name| file(name)).collect(),
        ..Snapshot::default()
    })
}

/// Has the config say what the weights are in, if they are all in one format.
fn name_format(snapshot: &mut Snapshot) {
    let mut dtypes = snapshot.model.values().map(|tensor| tensor.dtype);
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

    fn tensor(self, shape: &[usize], values: &[f32]) -> HostTensor {
        match self {
            Self::F32 => HostTensor::from_f32(shape, values),
            Self::Bf16 => HostTensor::from_f32_as_bf16(shape, values),
            Self::F16 => HostTensor::from_f32_as_f16(shape, values),
        }
    }
}
