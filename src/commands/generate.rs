//! `tpu-train generate`: continues a prompt with a checkpoint's model.

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tt_collators::{ChatCollator, ChatConfig, Conversation};
use tt_config::Diagnostics;
use tt_data::Tokenizer;
use tt_engine::{Limits, Sampler, Sampling};
use tt_tensor::Seed;
use tt_train::TokenIds;

use crate::args::GenerateOptions;
use crate::device::{DeviceConfig, report_declined, report_fallbacks};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::pretrained::GENERATION_CONFIG;
use crate::setup::stored::Stored;

/// The root config of `generate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GenerateConfig {
    /// A run folder, whose newest checkpoint is taken, any folder in Hugging Face or peft layout, a GGUF file, or
    /// `user/name@revision` on the Hub.
    checkpoint: String,
    /// The model that an adapter is on, named in the same way, if it is not where the adapter says.
    base: Option<String>,
    /// The text to continue; null: standard input. The flags `--prompt` and `--prompt-file` take one word for word.
    prompt: Option<String>,
    /// Whether the prompt is a message, to be answered: it is put into the chat template of the checkpoint, and the answer alone
    /// is printed.
    chat: bool,
    /// Whether the prompt begins with what the tokenizer puts before a text (its post-processor: `<s>` of Llama 2), as
    /// documents do in training.
    add_special_tokens: bool,
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

pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    invocation
        .composition
        .extract::<GenerateConfig>("")
        .map(drop)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: GenerateConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    let device = config.device.device().map_err(Failure::Request)?;
    let (checkpoint, base) = (&config.checkpoint, config.base.as_deref());
    let stored =
        Stored::open(checkpoint, base, &invocation.plugins, device).map_err(Failure::Request)?;
    let tokenizer = Arc::new(stored.tokenizer().map_err(Failure::Request)?);

    let given = given(&invocation.options.generate).map_err(Failure::Request)?;
    let prompt = match given.or(config.prompt) {
        Some(prompt) => prompt,
        None => read_stdin().map_err(Failure::Request)?,
    };
    let mut ends = ends(&stored, &tokenizer).map_err(Failure::Request)?;
    let ids = if config.chat {
        let chat = ChatCollator::new(ChatConfig::default(), Arc::clone(&tokenizer));
        let chat = chat.map_err(Failure::request)?;
        ends.extend(chat.end());
        let asked = chat.prompt(&Conversation::of(&[("user", &prompt)]));
        tokenizer.encode(&asked.map_err(|why| Failure::Request(anyhow!(why)))?)
    } else if config.add_special_tokens {
        tokenizer.encode_prompt(&prompt)
    } else {
        tokenizer.encode(&prompt)
    };
    let ids = ids.map_err(Failure::request)?;
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
        ends,
    };
    let tokens = tt_engine::generate(&*stored.model, &stored.params, &ids, &mut sampler, &limits)
        .map_err(|error| match error {
        tt_engine::Error::NotFinite { .. } => Failure::run(error),
        error => Failure::request(error),
    })?;
    report_fallbacks(device);
    report_declined(device);
    let continuation = tokenizer.decode_continuation(&ids, &tokens);
    let continuation = continuation.map_err(Failure::run)?;
    let shown = if config.chat {
        continuation.trim().to_owned()
    } else {
        format!("{prompt}{continuation}")
    };
    // A model's text is shown as it is.
    out::text(format_args!("{shown}\n"));
    Ok(ExitCode::SUCCESS)
}

/// The tokens that end a text, as the model's files say, and as the tokenizer does.
fn ends(stored: &Stored, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let json = |name| match stored.file(name) {
        Some(path) => Ok(tt_disk::read_json(&path)?),
        None => anyhow::Ok(Value::Null),
    };
    let ids = TokenIds::new(&json("config.json")?, &json(GENERATION_CONFIG)?);
    Ok(ids.with(tokenizer).ends())
}

/// The prompt as the flags give it, word for word; `None` if they do not.
fn given(options: &GenerateOptions) -> anyhow::Result<Option<String>> {
    match (&options.prompt, &options.prompt_file) {
        (Some(prompt), _) => Ok(Some(prompt.clone())),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("--prompt-file: {}", file.display()))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        (None, None) => Ok(None),
    }
}

fn read_stdin() -> anyhow::Result<String> {
    let mut prompt = String::new();
    let read = std::io::stdin().read_to_string(&mut prompt);
    read.context("standard input")?;
    Ok(prompt.trim_end_matches('\n').to_owned())
}
