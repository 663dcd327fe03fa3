//! `tpu-train batch`: the first batches of a configuration as the trainer gets them, to be looked at: what is trained on,
//! where documents begin, what is padding, and where each row came from. Needs no model and no trainer.

mod html;
mod shown;
mod text;

use std::process::ExitCode;

use tt_collators::{Pipeline, PipelineOptions};
use tt_config::{Composition, Diagnostics};
use tt_data::DataConfig;

use crate::config::AppConfig;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::hub::Need;
use crate::setup::pretrained::Pretrained;
use crate::setup::{check_data, fetch_tokenizer, open_pipeline, start_batches};
use shown::Shown;

/// What is wrong with the configuration itself.
pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    check_data(&invocation.composition, &invocation.plugins)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    check(&invocation)?;
    let data = open(&invocation, |_| ())?;
    let mut batches = data.train(None).map_err(Failure::run)?;
    let options = &invocation.options;
    let mut shown = Vec::new();
    for _ in 0..options.batch.count {
        match batches.next_batch().map_err(Failure::run)? {
            Some(batch) => shown.push(Shown::of(&batch, &data).map_err(Failure::run)?),
            None => break,
        }
    }
    if options.json {
        out::line(serde_json::to_string_pretty(&shown).map_err(Failure::run)?);
    } else if options.batch.html {
        out::text(html::page(&shown));
    } else {
        out::text(text::text(&shown, text::Colours::of_terminal()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The data of a configuration, which need not have a model; `change` may change what is asked for.
pub(super) fn open(
    invocation: &Invocation,
    change: impl FnOnce(&mut DataConfig),
) -> Result<Pipeline, Diagnostics> {
    let Invocation {
        composition,
        plugins,
        ..
    } = invocation;
    let mut config: AppConfig = composition.extract("")?;
    fetch_tokenizer(&mut config.data, composition)?;
    change(&mut config.data);
    let trainer = config.trainer.map(|trainer| trainer.with_length());
    let default = PipelineOptions::default();
    let options = PipelineOptions {
        seed: config.seed,
        micro_batch_size: trainer
            .as_ref()
            .map_or(default.micro_batch_size, |trainer| trainer.micro_batch_size),
        start_batches: start_batches(&config.data, trainer.as_ref()),
        num_epochs: trainer.and_then(|trainer| trainer.num_epochs),
        sources: plugins.sources.clone(),
        collators: plugins.collators.clone(),
        tokenizer: base_tokenizer(composition)?,
        ..default
    };
    open_pipeline(composition, &config.data, &options)
}

/// That of the weights that a run would start from.
fn base_tokenizer(
    composition: &Composition,
) -> Result<Option<tt_data::TokenizerOrigin>, Diagnostics> {
    let has_model = composition.get("model").is_some_and(|node| !node.is_null());
    let pretrained = if has_model {
        Pretrained::open(composition, Need::Tokenizer)?
    } else {
        None
    };
    Ok(pretrained.and_then(|pretrained| pretrained.tokenizer().ok()))
}
