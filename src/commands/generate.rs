//! `tpu-train generate`: continues a prompt with a checkpoint's model.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use schemars::JsonSchema;
use serde::Deserialize;
use tt_checkpoint::{Checkpoint, Weights};
use tt_data::Tokenizer;
use tt_engine::{Limits, Sampler, Sampling};
use tt_models::Model;
use tt_tensor::Seed;

use crate::commands::Invocation;
use crate::config::DeviceConfig;
use crate::failure::Failure;
use crate::out;
use crate::plugins::Plugins;
use crate::run_dir;

/// The root config of `generate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GenerateConfig {
    /// A run folder, whose newest checkpoint is taken, or any folder in Hugging Face layout.
    checkpoint: String,
    /// The text to continue; null: standard input.
    prompt: Option<String>,
    /// Tokens to add at most.
    max_new_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    #[schemars(range(min = 0.0))]
    temperature: f32,
    /// Tokens are drawn from the smallest set that reaches this probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    top_p: f32,
    /// The same seed, prompt and weights give the same text.
    seed: u64,
    /// What it runs on.
    device: DeviceConfig,
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: GenerateConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    let folder = Path::new(&config.checkpoint);
    let latest = newest_checkpoint(folder).map_err(Failure::Request)?;
    let folder = latest.as_ref().map_or(folder, Checkpoint::dir);

    let model = read_model(folder, &invocation.plugins).map_err(Failure::Request)?;
    let tokenizer = Tokenizer::load(folder, None).map_err(Failure::request)?;
    let weights = Weights::open(folder).map_err(Failure::request)?;
    let params = tt_trainers::load_params(&*model, &weights, config.device.device())
        .map_err(Failure::request)?;

    let prompt = match config.prompt {
        Some(prompt) => prompt,
        None => read_stdin().map_err(Failure::Request)?,
    };
    let ids = tokenizer.encode(&prompt).map_err(Failure::request)?;
    let sampling = match config.temperature {
        0.0 => Sampling::Greedy,
        temperature => Sampling::Nucleus {
            temperature,
            top_p: config.top_p,
        },
    };
    let mut sampler = Sampler::new(sampling, Seed::new(config.seed));
    let limits = Limits {
        max_new_tokens: config.max_new_tokens,
        eos: Some(tokenizer.eos_id()),
    };
    let tokens = tt_engine::generate(&*model, &params, &ids, &mut sampler, &limits)
        .map_err(Failure::request)?;
    let continuation = tokenizer.decode(&tokens).map_err(Failure::run)?;
    out::line(format!("{prompt}{continuation}"));
    Ok(ExitCode::SUCCESS)
}

/// The newest checkpoint, if `folder` is a run's.
fn newest_checkpoint(folder: &Path) -> anyhow::Result<Option<Checkpoint>> {
    let checkpoints = run_dir::checkpoints(folder);
    if !checkpoints.is_dir() {
        return Ok(None);
    }
    let latest = tt_checkpoint::latest(&checkpoints)?;
    let none = || anyhow!("{} holds no checkpoint", checkpoints.display());
    latest.checkpoint.ok_or_else(none).map(Some)
}

/// The model that `config.json` describes.
fn read_model(folder: &Path, plugins: &Plugins) -> anyhow::Result<Arc<dyn Model>> {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let config = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let entry = plugins.model_of_checkpoint(&config)?;
    (entry.build.from_hf)(&config).with_context(|| path.display().to_string())
}

fn read_stdin() -> anyhow::Result<String> {
    let mut prompt = String::new();
    let read = std::io::stdin().read_to_string(&mut prompt);
    read.context("standard input")?;
    Ok(prompt.trim_end_matches('\n').to_owned())
}
