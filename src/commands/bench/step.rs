//! `bench step`: the whole optimizer step of the run on rows of random tokens, reading no data.

use std::time::Duration;

use tt_config::Composition;
use tt_report::number;
use tt_tensor::Device;
use tt_train::{TimedStep, measured_peak_flops, timed_step};

use super::config::BenchConfig;
use super::job::Job;
use super::report::{Report, ms};
use super::samples::{median, samples};
use crate::failure::Failure;
use crate::setup::Setup;

pub(super) fn measure(
    setup: Setup,
    composition: &Composition,
    device: Device,
    config: &BenchConfig,
) -> Result<Report, Failure> {
    let spec = setup.batch_spec().map_err(Failure::request)?;
    let flops_per_micro_batch = setup.flops_per_micro_batch(&spec)?;
    let given_peak = setup.given_peak_flops(composition)?;
    let precision = setup.config.precision.into();
    let mut job = Job::new(setup, composition, device)?;
    let made = samples(config, || {
        let step = timed_step(&mut job.training, &mut *job.trainer, &job.batches)?;
        Ok(step.is_applied.then_some(step))
    })?;
    // Before anything else takes memory.
    let peak_rss_bytes = tt_metrics::peak_rss_bytes();
    let measured = || measured_peak_flops(device, precision).map_err(Failure::run);
    let peak_flops = given_peak.map_or_else(measured, Ok)?;

    let (steps, time) = (made.len(), |step: &TimedStep| step.time);
    let fastest = made.iter().map(time).min().unwrap_or_default();
    let slowest = made.iter().map(time).max().unwrap_or_default();
    let step = median(made, time).ok_or_else(|| Failure::Run(anyhow::anyhow!("no step")))?;
    let seconds = step.time.as_secs_f64();
    let tokens_per_second = job.tokens() as f64 / seconds;
    let flops = (flops_per_micro_batch * job.batches.len() as u64) as f64 / seconds;

    let mut report = Report::default();
    report.fact("tokens_per_second", tokens_per_second);
    report.fact("tokens_per_step", job.tokens());
    report.fact("step_ms", ms(step.time));
    report.fact("forward_ms", ms(step.parts.forward));
    report.fact("backward_ms", ms(step.parts.backward));
    report.fact("optimizer_ms", ms(step.parts.optimizer));
    report.fact("fastest_step_ms", ms(fastest));
    report.fact("slowest_step_ms", ms(slowest));
    report.fact("gflops", flops / 1e9);
    report.fact("peak_gflops", peak_flops / 1e9);
    report.fact("share_of_peak", flops / peak_flops);
    report.fact("peak_rss_bytes", peak_rss_bytes);
    report.fact("steps", steps);

    let shown = |time: Duration| format!("{:.1} ms", ms(time));
    report.row("tokens/s", format!("{tokens_per_second:.0}"), "");
    report.row(
        "step",
        shown(step.time),
        format!(
            "median of {steps}; {:.1} to {:.1}",
            ms(fastest),
            ms(slowest)
        ),
    );
    report.row("  forward", shown(step.parts.forward), "");
    report.row("  backward", shown(step.parts.backward), "");
    report.row("  optimizer", shown(step.parts.optimizer), "");
    let of_peak = format!(
        "{:.1} % of {:.1}, {}",
        100.0 * flops / peak_flops,
        peak_flops / 1e9,
        match given_peak {
            Some(_) => "as device.peak_tflops says",
            None => "measured by a large product",
        }
    );
    report.row("GFLOP/s", format!("{:.1}", flops / 1e9), of_peak);
    if let Some(bytes) = peak_rss_bytes {
        report.row("memory", number::bytes(bytes), "of the process at most");
    }
    Ok(report)
}
