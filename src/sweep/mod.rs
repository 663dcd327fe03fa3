//! `--multirun`: one command line that stands for many runs.
//!
//! ```text
//! tpu-train -m +model=qwen2 +trainer=lm lr=1e-3,1e-4 seed=1,2
//!
//! multirun/2026-01-31/12-00-00/   hydra.sweep.dir, locked while the sweep runs
//!   sweep.json                    the jobs: which folder, which overrides
//!   sweep.csv  sweep.svg          their results, best first, and as a plot
//!   report.html                   the best of them side by side
//!   0/ 1/ 2/ 3/                   hydra.sweep.subdir, each a run folder (see `run_dir`) with two files more:
//!     job.json                    status, exit code, overrides, config
//!     train.log                   what the job printed
//! ```
//!
//! Each job is a process of its own, started with one value for each swept key, so a crash ends one job. The same
//! command run again skips what has finished, goes on with what was interrupted, and tries again what failed.

pub(crate) mod config;
mod display;
mod job;
mod launch;
mod plan;
mod progress;
mod results;

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;

use anyhow::Context;
use tt_config::Composer;
use tt_launch::{EXIT_INTERRUPTED, EXIT_PREEMPTED, StopSignal, this_program};
use tt_run::run_dir::REPORT;
use tt_train::StopFlag;

use crate::args::Args;
use crate::failure::Failure;
use crate::out;
use crate::plugins::Plugins;
use crate::report;
use crate::sweep::display::Display;
use crate::sweep::job::{JobState, JobStatus};
use crate::sweep::launch::Launcher;
use crate::sweep::plan::SweepPlan;
use crate::sweep::results::SweepResults;

/// Runs the sweep that the arguments describe, to its end or until a signal stops it.
pub(crate) fn run(
    composer: &Composer,
    args: &Args,
    plugins: &Plugins,
) -> Result<ExitCode, Failure> {
    out::is_log();
    let plan = SweepPlan::read(composer, &args.overrides, plugins)?;
    let program = this_program().map_err(Failure::run)?;
    let stop = StopFlag::default();
    let signal = StopSignal::install(stop.shared()).map_err(Failure::run)?;
    signal.save_first();
    let (folder, notes) = plan.open_folder()?;
    notes.iter().for_each(out::line);
    out::line(format!(
        "{} jobs, {} at a time, in {}",
        plan.jobs.len(),
        plan.n_jobs,
        folder.path().display()
    ));

    let launcher = Launcher {
        plan: &plan,
        folder: folder.path(),
        program,
        arguments: shared_arguments(args),
        stop: stop.clone(),
    };
    let progress = plan.jobs[0].config["logging"]["progress"].as_str();
    let mut display = Display::new(progress);
    let states = launcher.run(&mut display);
    display.finish();
    let states = states.map_err(Failure::Run)?;

    let results = SweepResults::new(&plan.config, folder.path(), &plan.jobs, &states);
    conclude(&results, folder.path()).map_err(Failure::Run)?;
    Ok(exit_code(
        &states,
        stop.is_requested()
            .then(|| signal.exit_code().unwrap_or(EXIT_INTERRUPTED)),
    ))
}

/// One run, of configs that are where the sweep's are.
fn shared_arguments(args: &Args) -> Vec<OsString> {
    let mut shared = vec!["--run".into()];
    let mut flag = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            shared.extend([name.into(), value]);
        }
    };
    flag("--config-name", args.config_name.clone().map(Into::into));
    flag("--config-path", args.config_path.clone().map(Into::into));
    flag("--config-dir", args.config_dir.clone().map(Into::into));
    shared
}

/// More lines in one chart cannot be told apart.
const MOST_COMPARED: usize = 12;

fn conclude(results: &SweepResults, folder: &std::path::Path) -> anyhow::Result<()> {
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    write("sweep.csv", results.csv())?;
    if let Some(plot) = results.plot() {
        write("sweep.svg", plot.svg()?)?;
    }
    let runs = results.best_folders(folder, MOST_COMPARED);
    if !runs.is_empty() {
        report::write_comparison(&runs, &folder.join(REPORT))?;
    }
    out::text(format!("\n{}\n", results.table()));
    match results.best() {
        Some(best) => out::line(format!("best        job {}", best.num)),
        None if results
            .rows
            .iter()
            .any(|row| row.status == JobStatus::Finished) =>
        {
            out::line(format!(
                "warning: no finished job has a number `{}`; choose another with sweep.metric=...",
                results.metric
            ))
        }
        None => {}
    }
    out::line(format!(
        "results     {}",
        folder.join("sweep.csv").display()
    ));
    let count = |status| {
        results
            .rows
            .iter()
            .filter(|row| row.status == status)
            .count()
    };
    let finished = count(JobStatus::Finished);
    if finished < results.rows.len() {
        out::line(format!(
            "continue    the same command: {} failed, {} not finished",
            count(JobStatus::Failed),
            results.rows.len() - finished - count(JobStatus::Failed)
        ));
    }
    Ok(())
}

/// `signalled` is what a signal that stopped the sweep makes of it.
fn exit_code(states: &[JobState], signalled: Option<u8>) -> ExitCode {
    let any = |status| states.iter().any(|state| state.status == status);
    let all_finished = states
        .iter()
        .all(|state| state.status == JobStatus::Finished);
    match signalled {
        _ if all_finished => ExitCode::SUCCESS,
        Some(code) => code.into(),
        None if any(JobStatus::Failed) => ExitCode::FAILURE,
        None => EXIT_PREEMPTED.into(),
    }
}
