//! `tpu-train embed`: texts as vectors, by the last hidden states of any model.
//!
//! Vectors are in the order of the texts. What shares a batch with a text changes its vector by rounding alone, some 1e-6 of
//! a length of one in f32.

mod config;
mod npy;
mod pooling;
mod texts;

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde::Serialize;
use tt_config::Diagnostics;
use tt_engine::{Embedding, embed};
use tt_launch::StopSignal;
use tt_train::StopFlag;

use crate::device::{report_declined, report_fallbacks};
use crate::failure::{Failure, check_output};
use crate::invocation::Invocation;
use crate::out;
use crate::setup::stored::Stored;
use config::EmbedConfig;

pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    invocation.composition.extract::<EmbedConfig>("").map(drop)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: EmbedConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    // There is nothing to save: a signal ends the command, with its own code.
    let _signal =
        StopSignal::install_silently(StopFlag::default().shared()).map_err(Failure::run)?;
    let target = Target::of(config.out.as_deref()).map_err(Failure::Request)?;
    check_output("out", config.out.as_deref())?;
    let device = config.device.device().map_err(Failure::Request)?;
    let (checkpoint, base) = (&config.checkpoint, config.base.as_deref());
    let stored = Stored::open_body(checkpoint, base, &invocation.plugins, device);
    let stored = stored.map_err(Failure::Request)?;
    let tokenizer = stored.tokenizer().map_err(Failure::Request)?;
    tt_train::check_vocabulary(tokenizer.vocab_size(), &*stored.model)?;
    let pooling = pooling::of(&config, &stored).map_err(Failure::Request)?;
    let texts = texts::read(&config, &invocation.options.texts).map_err(Failure::Request)?;

    let longest = stored.model.max_positions();
    let longest = config.max_length.map_or(longest, |most| most.min(longest));
    let (mut ids, mut cut, mut empty) = (Vec::with_capacity(texts.len()), 0, 0);
    for text in &texts {
        let tokens = texts::tokens(&tokenizer, text, config.add_special_tokens, longest);
        let (tokens, is_cut) = tokens.map_err(Failure::Request)?;
        cut += usize::from(is_cut);
        empty += usize::from(tokens.is_empty());
        ids.push(tokens);
    }
    if cut > 0 {
        out::error_line(format_args!(
            "warning: {cut} of {} texts were cut to {longest} tokens",
            texts.len()
        ));
    }
    if empty > 0 {
        out::error_line(format_args!(
            "warning: {empty} of {} texts have no token: their vectors are zeros",
            texts.len()
        ));
    }
    let options = Embedding {
        pooling: pooling.into(),
        normalize: config.normalize,
        precision: tt_tensor::Precision::from(config.precision),
        batch_size: config.batch_size,
    };
    let vectors = embed(&*stored.model, &stored.params, &ids, options, device);
    let vectors = vectors.map_err(Failure::run)?;
    report_fallbacks(device);
    report_declined(device);
    target.write(&texts, &vectors).map_err(Failure::Run)?;
    Ok(ExitCode::SUCCESS)
}

/// Where the vectors go.
enum Target<'a> {
    Npy(&'a Path),
    Jsonl(&'a Path),
    Stdout,
}

impl<'a> Target<'a> {
    fn of(out: Option<&'a Path>) -> anyhow::Result<Self> {
        let Some(path) = out else {
            return Ok(Self::Stdout);
        };
        match path.extension().and_then(|it| it.to_str()) {
            Some("npy") => Ok(Self::Npy(path)),
            Some("jsonl") => Ok(Self::Jsonl(path)),
            _ => Err(anyhow!(
                "out: {} is neither .npy nor .jsonl",
                path.display()
            )),
        }
    }

    fn write(&self, texts: &[String], vectors: &[Vec<f32>]) -> anyhow::Result<()> {
        let path = match self {
            Self::Npy(path) => {
                tt_disk::write_file(path, &npy::bytes(vectors))?;
                path
            }
            Self::Jsonl(path) => {
                let mut bytes = Vec::new();
                write_lines(&mut bytes, texts, vectors)?;
                tt_disk::write_file(path, &bytes)?;
                path
            }
            Self::Stdout => {
                let stdout = io::BufWriter::new(io::stdout().lock());
                return match write_lines(stdout, texts, vectors) {
                    // Whoever reads has enough.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                    written => written.context("standard output"),
                };
            }
        };
        let width = vectors.first().map_or(0, Vec::len);
        out::line(format!(
            "wrote {}: {} vectors of {width} numbers",
            path.display(),
            vectors.len()
        ));
        Ok(())
    }
}

#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    text: &'a str,
    embedding: &'a [f32],
}

/// An object a line.
fn write_lines(mut to: impl Write, texts: &[String], vectors: &[Vec<f32>]) -> io::Result<()> {
    for (index, (text, embedding)) in texts.iter().zip(vectors).enumerate() {
        let line = Line {
            index,
            text,
            embedding,
        };
        serde_json::to_writer(&mut to, &line)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}
