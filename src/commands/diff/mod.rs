//! `tpu-train diff`: whether two variants of one configuration compute the same, and where they begin not to.
//!
//! Each variant is the configuration of the command line with further overrides. Both make one step of the run, on the
//! same batch and from the same weights ([`tt_train::compare`]). Nothing is written but what `--markdown` names.

mod comparison_json;
mod comparison_report;
mod variant;

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use tt_tensor::{Device, Precision};
use tt_train::compare::{self, Recording};

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::supervise;
use comparison_report::ComparisonReport;
use variant::Variant;

pub(crate) use variant::split;

/// The variants compute something else.
const DIVERGED: u8 = 1;

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    let options = &invocation.options.diff;
    let Some(of_b) = &options.b else {
        return Err(Failure::Request(anyhow!(
            "`diff` needs `--b OVERRIDE`: what the second variant changes, as in --b precision=bf16"
        )));
    };
    let a = Variant::read('A', &invocation, &options.a)?;
    let b = Variant::read('B', &invocation, of_b)?;
    // A variant may be for a device that is worked on in another process, as the whole of it then is.
    let supervised = [&a, &b].map(|it| supervise::device_of_worker(&it.composition));
    if let Some(device) = supervised.into_iter().flatten().next() {
        return supervise::run(&device, 1, &invocation.arguments);
    }
    if a.setup.config.device.threads != b.setup.config.device.threads {
        return Err(Failure::Request(anyhow!(
            "the variants run in one process: `device.threads` must be the same (results do not depend on it)"
        )));
    }
    if a.setup.config.device.isa != b.setup.config.device.isa {
        return Err(Failure::Request(anyhow!(
            "the variants run in one process: `device.isa` must be the same"
        )));
    }
    a.setup.config.device.start_threads()?;
    let mut tpu = None;
    for variant in [&a, &b] {
        // Before anything is computed: two variants may not be on one TPU in two ways.
        let device = variant.setup.config.device.device();
        if let Device::Tpu(device) = device.map_err(Failure::Request)? {
            tpu = Some(device);
        }
    }
    compare::check_parameters(&a.parameters(), &b.parameters()).map_err(Failure::from)?;
    let (data_a, batch) = a.open_data()?;
    let (data_b, batch_of_b) = b.open_data()?;
    compare::check_batches(&batch, &batch_of_b).map_err(Failure::from)?;
    let shown = [a.shown(), b.shown()];

    let mut recording = Recording::of(a.prepare(data_a)?, &batch).map_err(Failure::from)?;
    let of_b = b.precision();
    let rounds = [recording.precision(), of_b]
        .iter()
        .any(|it| *it != Precision::F32);
    if rounds && options.tolerance.is_none() {
        let again = Variant::read('A', &invocation, &options.a)?;
        let (data, _) = again.open_data()?;
        let measured = recording.measure_sensitivity(again.prepare(data)?, of_b);
        measured.map_err(Failure::from)?;
    }
    let comparison = recording.compare(b.prepare(data_b)?, options.tolerance);
    let report = ComparisonReport {
        variants: shown,
        rows: batch.rows,
        sequence_length: batch.seq_len,
        comparison: comparison.map_err(Failure::from)?,
        tpu: tpu.map(|tpu| tpu.stats()),
    };
    // First to the terminal: a file that cannot be written shall not take the result with it.
    out::text(if invocation.options.json {
        report.json()
    } else {
        report.table()
    });
    if let Some(path) = &options.markdown {
        std::fs::write(path, report.markdown())
            .with_context(|| format!("--markdown: cannot write {}", path.display()))
            .map_err(Failure::run)?;
    }
    Ok(if report.comparison.agrees() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIVERGED)
    })
}
