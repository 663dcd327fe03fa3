//! `tpu-train doctor`: what this machine has for training, to read and to copy into a report.
//!
//! Nothing is needed to run it. What is missing is a note with the command that installs it; what is there and does not
//! work, or does not fit together, is a problem, and the exit code is 1. The device is opened in a process of its own with
//! a timeout, as a broken library may end or hang whoever loads it.

mod chip;
mod findings;
mod kernels;
mod machine;
mod probe;
mod tools;

use std::process::ExitCode;

use anyhow::anyhow;
use tt_tpu::module::Kernels;
use tt_tpu::sdk::{Sdk, SdkError, SdkKind};

use crate::args::Options;
use crate::failure::Failure;
use crate::out;
use findings::{Findings, State};
use tt_run::program::{self, Program};

pub(crate) fn run(operands: &[String], options: &Options) -> Result<ExitCode, Failure> {
    match operands {
        [] => {}
        [operand, file] if operand == probe::OPERAND => return probe::work(file.as_ref()),
        _ => {
            let name = program::running().name;
            return Err(Failure::Request(anyhow!(
                "doctor takes no operands: {name} doctor [--json]"
            )));
        }
    }
    let mut findings = Findings::default();
    let Program { name, version } = program::running();
    findings.row("program", name, State::Ok, version);
    machine::rows(&mut findings);
    tpu_rows(&mut findings);
    tools::rows(&mut findings);
    if options.json {
        out::line(serde_json::to_string_pretty(&findings).map_err(Failure::run)?);
    } else {
        out::text(findings.text());
    }
    Ok(if findings.has_problem() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn tpu_rows(findings: &mut Findings) {
    const TPU: &str = "tpu";
    let sdk = match Sdk::find(None) {
        Ok(sdk) => sdk,
        Err(error) => {
            // Nobody has asked for libraries that nobody has named.
            let named = std::env::var_os("SOPHGO_SDK").is_some_and(|root| !root.is_empty());
            let state = match error {
                SdkError::Missing(_) if !named => State::Missing,
                _ => State::Problem,
            };
            findings.row(TPU, "libraries", state, error.to_string());
            return;
        }
    };
    let kind = match sdk.kind {
        SdkKind::Emulator => "emulator",
        SdkKind::Driver => "driver",
    };
    let version = sdk.version.as_deref().unwrap_or("of unknown version");
    let text = format!("{kind} {version} in {}", sdk.folder.display());
    findings.row(TPU, "libraries", State::Ok, text);
    let mut vendors = None;
    match Kernels::find(&sdk) {
        Ok(kernels) => {
            vendors = kernels.vendors;
            let with = vendors
                .as_ref()
                .map(|path| format!(", with {}", path.display()));
            let text = format!(
                "for the {}{}",
                kernels.target.name(),
                with.unwrap_or_default()
            );
            findings.row(TPU, "kernels", State::Ok, text);
        }
        Err(error) => findings.row(TPU, "kernels", State::Problem, error.to_string()),
    }
    let versions = chip::rows(findings, &sdk, vendors.as_deref());
    for result in probe::run() {
        let state = match result.error {
            None if result.is_unknown => State::Missing,
            None => State::Ok,
            Some(_) => State::Problem,
        };
        let text = result.error.unwrap_or(result.text);
        findings.row(TPU, &result.group, state, text);
    }
    chip::fit(findings, &versions);
}
