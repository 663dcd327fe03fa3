//! `tpu-train plan`: what the run that the same command line would train takes, without allocating it.

mod estimate;
mod estimate_report;
mod fit;
mod time;

use std::process::ExitCode;

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::Setup;
pub(super) use estimate::Estimate;

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    // Kernels take scratch for each thread.
    let device = Setup::read_to_plan(&invocation)?.config.device;
    device.start_threads()?;
    let mut estimate = Estimate::of(&invocation)?;
    estimate.steps = estimate::steps(&invocation)?;
    let options = &invocation.options;
    let own = options.memory_bytes.or(device.memory_bytes());
    let memory = own.or_else(tt_metrics::memory_bytes);
    let fit = memory.map(|memory| fit::check(&invocation, &estimate, memory));
    out::text(if options.json {
        estimate_report::json(&estimate, fit.as_ref())
    } else {
        estimate_report::table(&estimate, fit.as_ref())
    });
    Ok(ExitCode::SUCCESS)
}
