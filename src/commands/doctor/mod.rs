//! `tpu-train doctor`: what this machine has for training, to read and to copy into a report.
//!
//! Nothing is needed to run it. What is missing is a note with the command that installs it; what is there and does not
//! work, or does not fit together, is a problem, and the exit code is 1. The device is opened in a process of its own with
//! a timeout, as a broken library may end or hang whoever loads it.

mod kernels;
mod machine;
mod probe;
mod tools;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use tt_tpu::sdk::{Sdk, SdkError, SdkKind};

use crate::commands::Options;
use crate::failure::Failure;
use crate::out;
use crate::program::{self, Program};

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// It is not there, and nothing else needs it.
    Missing,
    /// It is there and does not work.
    Problem,
}

/// A line of the report.
#[derive(Debug, Serialize)]
struct Row {
    section: &'static str,
    name: String,
    state: State,
    text: String,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    rows: Vec<Row>,
}

impl Report {
    fn row(&mut self, section: &'static str, name: &str, state: State, text: impl Into<String>) {
        self.rows.push(Row {
            section,
            name: name.to_owned(),
            state,
            text: text.into(),
        });
    }

    fn has_problem(&self) -> bool {
        self.rows.iter().any(|row| row.state == State::Problem)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = row.section;
                writeln!(text, "{section}").expect("into a string");
            }
            let mark = match row.state {
                State::Ok => ' ',
                State::Missing => '-',
                State::Problem => '!',
            };
            writeln!(text, "{mark} {:<16}{}", row.name, row.text).expect("into a string");
        }
        text
    }
}

/// What the hidden operand asks for: `doctor probe FILE`.
const PROBE: &str = "probe";

pub(crate) fn run(operands: &[String], options: &Options) -> Result<ExitCode, Failure> {
    match operands {
        [] => {}
        [probe, file] if probe == PROBE => return probe::work(file.as_ref()),
        _ => {
            let name = program::running().name;
            return Err(Failure::Request(anyhow!(
                "doctor takes no operands: {name} doctor [--json]"
            )));
        }
    }
    let mut report = Report::default();
    let Program { name, version } = program::running();
    report.row("program", name, State::Ok, version);
    machine::rows(&mut report);
    tpu_rows(&mut report);
    tools::rows(&mut report);
    match options.json {
        true => out::line(serde_json::to_string_pretty(&report).map_err(Failure::run)?),
        false => out::text(report.text()),
    }
    Ok(match report.has_problem() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn tpu_rows(report: &mut Report) {
    const TPU: &str = "tpu";
    let sdk = match Sdk::find() {
        Ok(sdk) => sdk,
        Err(error) => {
            // Nobody has asked for libraries that nobody has named.
            let named = std::env::var_os("SOPHGO_SDK").is_some_and(|root| !root.is_empty());
            let state = match error {
                SdkError::Missing(_) if !named => State::Missing,
                _ => State::Problem,
            };
            report.row(TPU, "libraries", state, error.to_string());
            return;
        }
    };
    let kind = match sdk.kind {
        SdkKind::Emulator => "emulator",
        SdkKind::Driver => "driver",
    };
    let version = sdk.version.as_deref().unwrap_or("of unknown version");
    let text = format!("{kind} {version} in {}", sdk.folder.display());
    report.row(TPU, "libraries", State::Ok, text);
    for result in probe::run() {
        let state = match result.error {
            None => State::Ok,
            Some(_) => State::Problem,
        };
        let text = result.error.unwrap_or(result.text);
        report.row(TPU, &result.group, state, text);
    }
}
