//! `tpu-train bench`: how fast one part of the configured run is on this machine. No run folder is made, and nothing stays.
//!
//! ```text
//! step        the optimizer step, on random tokens
//! ops         what its time goes into, by operation
//! loader      the batches of the data, with nobody consuming them
//! checkpoint  saving the whole state and taking it up again
//! generate    reading a prompt and continuing it
//! ```

mod checkpoint;
pub(crate) mod config;
mod generate;
mod job;
mod loader;
mod ops;
mod report;
mod samples;
mod step;

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tt_config::{Composition, Diagnostics};
use tt_models::Model;
use tt_run::program;

use super::batch;
use crate::args::BenchKind;
use crate::config::{AppConfig, Precision};
use crate::device::{report_declined, report_fallbacks};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out::{self, Talk};
use crate::setup::{Setup, problem};

/// What is wrong with the configuration itself.
pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    if kind(invocation) == BenchKind::Loader {
        return batch::check(invocation);
    }
    Setup::read(invocation).map(drop)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let kind = kind(&invocation);
    let composition = &invocation.composition;
    let config: AppConfig = composition.extract("")?;
    refuse_ranks(&config, composition)?;
    // Standard output is for the figures.
    out::set_talk(Talk::Aside);
    config.device.start_threads()?;
    let device = config.device.device().map_err(Failure::Request)?;
    let setup = || {
        let setup = Setup::read(&invocation)?;
        setup.check(composition)?;
        Ok::<_, Failure>(setup)
    };
    let isa = device.instruction_set();
    let conditions = match kind {
        BenchKind::Loader => conditions(kind, &config, composition, None, isa),
        _ => conditions(kind, &config, composition, Some(&*setup()?.model), isa),
    };
    let bench = &config.bench;
    let measured = match kind {
        BenchKind::Step => step::measure(setup()?, composition, device, bench)?,
        BenchKind::Ops => ops::measure(setup()?, setup()?, composition, device, bench)?,
        BenchKind::Loader => {
            batch::check(&invocation)?;
            loader::measure(&invocation, config.data.num_workers, bench)?
        }
        BenchKind::Checkpoint => match checkpoint::measure(setup()?, composition, device, bench)? {
            Ok(measured) => measured,
            Err(code) => return Ok(code),
        },
        BenchKind::Generate => generate::measure(setup()?, composition, device, bench)?,
    };
    report_fallbacks(device);
    report_declined(device);
    out::set_talk(Talk::Usual);
    if invocation.options.json {
        let mut all = conditions;
        all.extend(measured.json);
        out::line(Value::Object(all));
    } else {
        out::text(heading(&conditions) + &measured.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn kind(invocation: &Invocation) -> BenchKind {
    invocation.options.bench.unwrap_or_default()
}

/// What several ranks take is a matter of the network too, and of `plan`.
fn refuse_ranks(config: &AppConfig, composition: &Composition) -> Result<(), Diagnostics> {
    const KEY: &str = "device.ranks";
    match config.num_ranks() {
        1 => Ok(()),
        ranks => {
            let why = format!("`bench` measures one rank, and the configuration asks for {ranks}");
            Err(problem(composition, KEY, why).into())
        }
    }
}

/// What the figures depend on.
fn conditions(
    kind: BenchKind,
    config: &AppConfig,
    composition: &Composition,
    model: Option<&dyn Model>,
    isa: &str,
) -> Map<String, Value> {
    const SIZES: [&str; 6] = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ];
    let mut shape = Map::new();
    if let Some(model) = model {
        let specs = model.params();
        let elements = specs.iter().map(|it| it.shape.iter().product::<usize>());
        shape.insert("parameters".to_owned(), elements.sum::<usize>().into());
        // Those of the weights to start from, where there are any.
        let described = model.hf_config();
        let sizes = SIZES
            .iter()
            .filter_map(|&it| Some((it.to_owned(), described.get(it)?.clone())));
        shape.extend(sizes);
    }
    let mut counts = Vec::new();
    match (kind, &config.trainer) {
        (BenchKind::Generate, _) => {
            counts.push(("prompt_tokens", config.bench.prompt_tokens));
            counts.push(("new_tokens", config.bench.new_tokens));
        }
        (_, Some(trainer)) => {
            counts.push(("global_batch_size", trainer.global_batch_size));
            counts.push(("micro_batch_size", trainer.micro_batch_size));
            counts.push(("sequence_length", config.data.sequence_length));
        }
        (_, None) => counts.push(("sequence_length", config.data.sequence_length)),
    }
    shape.extend(
        counts
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into())),
    );
    // Texts are made in f32 whatever the run computes in.
    let precision = match kind {
        BenchKind::Generate => Precision::F32,
        _ => config.precision,
    };
    let named = composition.section("model").section("type").text().ok();
    let facts = [
        ("bench", kind.name().into()),
        ("version", program::running().version.into()),
        ("isa", isa.into()),
        ("threads", rayon::current_num_threads().into()),
        ("precision", json!(precision)),
        ("model", named.filter(|_| model.is_some()).into()),
        ("shape", shape.into()),
    ];
    facts
        .map(|(name, fact)| (name.to_owned(), fact))
        .into_iter()
        .collect()
}

/// The same in a line: `step of qwen2.Qwen2ForCausalLM, 8 rows of 256 tokens, f32; 2 threads, avx2`.
fn heading(conditions: &Map<String, Value>) -> String {
    let text = |name: &str| match &conditions[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let shape = &conditions["shape"];
    let of_model = match &conditions["model"] {
        Value::String(model) => format!(" of {model}"),
        _ => String::new(),
    };
    let tokens = match (&shape["prompt_tokens"], &shape["global_batch_size"]) {
        (Value::Number(prompt), _) => format!("a prompt of {prompt} tokens"),
        (_, Value::Number(rows)) => {
            let plural = if rows.as_u64() == Some(1) { "" } else { "s" };
            format!("{rows} row{plural} of {} tokens", shape["sequence_length"])
        }
        _ => format!("rows of {} tokens", shape["sequence_length"]),
    };
    format!(
        "{}{of_model}, {tokens}, {}; {} threads, {}\n\n",
        text("bench"),
        text("precision"),
        text("threads"),
        text("isa")
    )
}
