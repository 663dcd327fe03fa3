//! `tpu-train diff`: whether two variants of one configuration compute the same, and where they begin not to.
//!
//! Each variant is the configuration of the command line with further overrides. Both make one step of the run, on the
//! same batch and from the same weights ([`tt_train::compare`]); where one is on several ranks, on a micro-batch for each.
//! Nothing is written but what `--markdown` names.

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
    let mut a = Variant::read('A', &invocation, &options.a)?;
    let mut b = Variant::read('B', &invocation, of_b)?;
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
    let count = a.num_ranks().max(b.num_ranks());
    let rows = (count > 1).then(|| variant::rows_for_both(&a, &b));
    a.use_rows(rows);
    b.use_rows(rows);
    let (data_a, batches) = a.open_data(count)?;
    let (data_b, batches_of_b) = b.open_data(count)?;
    compare::check_batches(&batches, &batches_of_b).map_err(Failure::from)?;
    let shown = [a.shown(), b.shown()];

    let mut recording = Recording::of(&batches, |observer| a.run(data_a, observer))?;
    let precision_of_b = b.precision();
    let rounds = [recording.precision(), precision_of_b]
        .iter()
        .any(|it| *it != Precision::F32);
    if rounds && options.tolerance.is_none() {
        let mut again = Variant::read('A', &invocation, &options.a)?;
        again.use_rows(rows);
        let (data, _) = again.open_data(count)?;
        recording.measure_sensitivity(precision_of_b, |observer| again.run(data, observer))?;
    }
    let comparison = recording.compare(precision_of_b, options.tolerance, |observer| {
        b.run(data_b, observer)
    })?;
    let report = ComparisonReport {
        variants: shown,
        micro_batches: batches.len(),
        rows: batches.iter().map(|batch| batch.rows).sum(),
        sequence_length: batches.first().map_or(0, |batch| batch.seq_len),
        comparison,
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
