//! `tpu-train batch`: the first batches of a configuration as the trainer gets them, to be looked at: what is trained on,
//! where documents begin, what is padding, and where each row came from. Needs no model and no trainer.

mod html;
mod text;

use std::ops::Range;
use std::process::ExitCode;

use serde::Serialize;
use tt_collators::{Batch, IGNORE, Pipeline, PipelineOptions};
use tt_config::{Composition, Diagnostics};
use tt_data::{DataError, Tokenizer};

use crate::config::AppConfig;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::hub::Need;
use crate::setup::pretrained::Pretrained;
use crate::setup::{check_data, fetch_tokenizer, open_pipeline};

/// What is wrong with the configuration itself.
pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    check_data(&invocation.composition, &invocation.plugins)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    check(&invocation)?;
    let data = open(&invocation)?;
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

fn open(invocation: &Invocation) -> Result<Pipeline, Diagnostics> {
    let Invocation {
        composition,
        plugins,
        ..
    } = invocation;
    let mut config: AppConfig = composition.extract("")?;
    fetch_tokenizer(&mut config, composition)?;
    let trainer = config.trainer.map(|trainer| trainer.with_length());
    let default = PipelineOptions::default();
    let options = PipelineOptions {
        seed: config.seed,
        micro_batch_size: trainer
            .as_ref()
            .map_or(default.micro_batch_size, |trainer| trainer.micro_batch_size),
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

/// A batch as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    rows: Vec<ShownRow>,
    sequence_length: usize,
    /// Positions that hold a token.
    tokens: usize,
    /// Positions that the loss counts.
    targets: usize,
    /// The part of all positions that is padding.
    padding: f64,
}

/// A row of a batch.
#[derive(Debug, Serialize)]
struct ShownRow {
    /// Where the rows of data that it is made of stand.
    from: Vec<String>,
    /// Where in the data it begins.
    cursor: String,
    pieces: Vec<Piece>,
    input_ids: Vec<u32>,
    labels: Vec<i64>,
    segment_ids: Vec<u32>,
    position_ids: Vec<u32>,
}

/// Adjacent tokens of one segment that are all trained on, or none.
#[derive(Debug, Serialize)]
struct Piece {
    segment: u32,
    /// Of its first token within its segment.
    position: u32,
    tokens: usize,
    is_target: bool,
    text: String,
}

impl Shown {
    fn of(batch: &Batch, data: &Pipeline) -> Result<Self, DataError> {
        let seq_len = batch.seq_len;
        let mut rows = Vec::new();
        for (row, (from, to)) in batch.extents().enumerate() {
            let documents = data.documents(from, to)?;
            let range = row * seq_len..(row + 1) * seq_len;
            rows.push(ShownRow {
                from: documents.iter().map(ToString::to_string).collect(),
                cursor: from.to_string(),
                pieces: pieces(batch, range.clone(), data.tokenizer())?,
                input_ids: batch.input_ids[range.clone()].to_vec(),
                labels: batch.labels[range.clone()].to_vec(),
                segment_ids: batch.segment_ids[range.clone()].to_vec(),
                position_ids: batch.position_ids[range].to_vec(),
            });
        }
        let tokens = batch.segment_ids.iter().filter(|&&segment| segment != 0);
        let tokens = tokens.count();
        Ok(Self {
            rows,
            sequence_length: seq_len,
            tokens,
            targets: batch.num_targets,
            padding: 1.0 - tokens as f64 / batch.input_ids.len() as f64,
        })
    }
}

fn pieces(
    batch: &Batch,
    range: Range<usize>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Piece>, DataError> {
    let kind = |at: usize| (batch.segment_ids[at], batch.labels[at] != IGNORE);
    let mut pieces = Vec::new();
    let mut start = range.start;
    for at in range.clone() {
        let is_last = at + 1 == range.end || kind(at + 1) != kind(at);
        if !is_last {
            continue;
        }
        let (segment, is_target) = kind(at);
        if segment != 0 {
            pieces.push(Piece {
                segment,
                position: batch.position_ids[start],
                tokens: at + 1 - start,
                is_target,
                text: tokenizer.decode_all(&batch.input_ids[start..=at])?,
            });
        }
        start = at + 1;
    }
    Ok(pieces)
}
