//! `tpu-train eval`: the loss of a trained model over data, and its answers to multiple-choice questions.
//!
//! A checkpoint of a run is looked at as the run itself did in validation, with its data, trainer and precision, unless the
//! command line says otherwise, and over the same batches gives the very same loss. Nothing is
//! written but what `details` names.

mod choices;
mod config;
mod losses;
mod question;
mod subject;

use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use serde_json::Value;
use tt_config::Diagnostics;
use tt_launch::StopSignal;
use tt_report::{Column, Table};
use tt_tensor::Precision;
use tt_train::{StopFlag, TrainState};

use crate::device::{report_declined, report_fallbacks};
use crate::failure::{Failure, check_output};
use crate::invocation::Invocation;
use crate::out;
use crate::setup::check_data;
use choices::Answered;
use config::EvalConfig;
use losses::{LossJson, Losses, Measured};
use subject::{Recorded, Subject, nothing_to_do};

pub(crate) fn check(invocation: &Invocation) -> Result<(), Diagnostics> {
    invocation.composition.extract::<EvalConfig>("")?;
    check_data(&invocation.composition, &invocation.plugins)
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let config: EvalConfig = invocation.composition.extract("")?;
    config.device.start_threads()?;
    // There is nothing to save: a signal ends the command, with its own code.
    let _signal =
        StopSignal::install_silently(StopFlag::default().shared()).map_err(Failure::run)?;
    check_output("details", config.details.as_deref())?;
    let recorded = Recorded::of(&config.checkpoint, &invocation.plugins)?;
    let recorded = recorded.as_ref();
    let has_data = config.data.is_some() || (config.tasks.is_empty() && recorded.is_some());
    if !has_data && config.tasks.is_empty() {
        return Err(nothing_to_do(&config.checkpoint));
    }
    let tasks = choices::read(&config).map_err(Failure::Request)?;
    let subject = Subject::open(&config, recorded, &invocation)?;
    let losses = match has_data {
        true => Some(losses::measure(&config, &subject, recorded, &invocation)?),
        false => None,
    };
    let mut answered = Vec::new();
    if !tasks.is_empty() {
        let tokenizer = subject.stored.tokenizer().map_err(Failure::Request)?;
        for (file, questions) in &tasks {
            let of_file = choices::answer(file, questions, &config, &subject, &tokenizer)?;
            answered.push(of_file);
        }
    }
    report_fallbacks(subject.device);
    report_declined(subject.device);
    let found = Found {
        checkpoint: subject.stored.folder.display().to_string(),
        step: TrainState::read_in(&subject.stored.folder)?.map(|state| state.step),
        precision: subject.precision,
        losses,
        answered,
    };
    if invocation.options.json {
        out::line(found.json().map_err(Failure::run)?);
    } else {
        out::text(found.table());
    }
    // After what was found: that is not lost if this fails.
    if let Some(file) = &config.details {
        let lines = choices::details(&found.answered);
        tt_disk::write_file(file, lines.as_bytes()).map_err(Failure::run)?;
    }
    let rows = found.losses.iter().flat_map(|it| &it.rows);
    if !rows.into_iter().all(Measured::is_finite) {
        let why = "the loss is not finite: the weights are of no use, or the data is not";
        return Err(Failure::Run(anyhow!(why)));
    }
    Ok(ExitCode::SUCCESS)
}

/// All that was found out.
struct Found {
    checkpoint: String,
    /// Steps of training, if a run of this program's made it.
    step: Option<u64>,
    precision: Precision,
    losses: Option<Losses>,
    answered: Vec<Answered>,
}

/// The same for programs.
#[derive(Serialize)]
struct FoundJson<'a> {
    checkpoint: &'a str,
    step: Option<u64>,
    precision: &'static str,
    trainer: Option<&'a str>,
    losses: Vec<LossJson<'a>>,
    tasks: Vec<Value>,
}

impl Found {
    fn precision(&self) -> &'static str {
        match self.precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "fp16",
        }
    }

    fn json(&self) -> serde_json::Result<String> {
        let losses = self.losses.as_ref();
        let rows = losses.map_or(&[][..], |it| &it.rows);
        serde_json::to_string(&FoundJson {
            checkpoint: &self.checkpoint,
            step: self.step,
            precision: self.precision(),
            trainer: losses.map(|it| &*it.trainer),
            losses: rows.iter().map(Measured::json).collect(),
            tasks: self.answered.iter().map(Answered::json).collect(),
        })
    }

    fn table(&self) -> String {
        let (text, figure) = (Column::left(), Column::right());
        let step = self.step.map(|step| format!(", step {step}"));
        let trainer = self.losses.as_ref().map(|it| format!(", {}", it.trainer));
        let mut shown = format!(
            "{}{}{}, {}\n",
            self.checkpoint,
            step.unwrap_or_default(),
            trainer.unwrap_or_default(),
            self.precision()
        );
        if let Some(Losses { rows, .. }) = &self.losses {
            let mut table = Table::new([text, text, figure, figure, figure, figure, figure]);
            table.row(Measured::HEAD);
            for row in rows {
                table.row(row.cells());
                for (name, value) in row.further() {
                    table.line(format!("  {name} {value:.4}"));
                }
            }
            shown.push_str(&table.to_string());
        }
        if !self.answered.is_empty() {
            let mut table = Table::new([text, figure, figure, figure, figure, figure, figure]);
            table.row(Answered::HEAD);
            self.answered.iter().for_each(|it| table.row(it.cells()));
            shown.push_str(&table.to_string());
        }
        shown
    }
}
