//! `tpu-train runs [FOLDER ...]`: the runs below some folders, a line each: how far they came and how well they did.
//!
//! Reads only the last rows of what runs have recorded, also while they are at work. Without a folder: `outputs` and
//! `multirun`, where runs go that are not told otherwise.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use serde_json::Value as Json;
use tt_metrics::last_row_with;
use tt_report::{Column, Table, number};
use tt_run::run_dir::{self, METRICS, RESOLVED_CONFIG, SUMMARY};
use tt_run::{RunDir, RunDirError};

use crate::args::{Options, RunsOrder};
use crate::failure::Failure;
use crate::out;

/// Deeper there are no runs: `multirun/DATE/TIME/JOB`, in a project's folder.
const MOST_LEVELS: usize = 6;

pub(crate) fn run(folders: &[String], options: &Options) -> Result<ExitCode, Failure> {
    let mut runs = Vec::new();
    for folder in given_or_usual(folders)? {
        runs.extend(run_folders(&folder).iter().map(|run| RunSummary::read(run)));
    }
    runs.sort_by(|a, b| options.sort.compare(a, b).then_with(|| a.run.cmp(&b.run)));
    if options.json {
        let text = serde_json::to_string_pretty(&runs).map_err(Failure::run)?;
        out::line(text);
    } else if runs.is_empty() {
        out::line("no runs");
    } else {
        out::text(table(&runs));
    }
    Ok(ExitCode::SUCCESS)
}

fn given_or_usual(folders: &[String]) -> Result<Vec<PathBuf>, Failure> {
    if folders.is_empty() {
        return Ok(["outputs", "multirun"].map(PathBuf::from).into());
    }
    let folders: Vec<_> = folders.iter().map(PathBuf::from).collect();
    match folders.iter().find(|folder| !folder.is_dir()) {
        Some(missing) => Err(Failure::Request(anyhow!(
            "there is no folder {}",
            missing.display()
        ))),
        None => Ok(folders),
    }
}

/// A run in a few words; what it has not recorded is null.
#[derive(Debug, Serialize)]
pub(crate) struct RunSummary {
    run: PathBuf,
    /// The key `name`.
    name: Option<String>,
    state: State,
    step: Option<u64>,
    /// Of the last step.
    loss: Option<f64>,
    /// Of the last validation.
    val_loss: Option<f64>,
    /// Over the run if it has finished, else of the last step.
    tokens_per_second: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Finished,
    /// A process works in its folder.
    Running,
    /// Stopped, killed or failed: it can go on if it has saved.
    Unfinished,
}

impl State {
    fn of(run: &Path) -> Self {
        // One that has finished before may be at work again.
        if matches!(RunDir::check_free(run), Err(RunDirError::InUse { .. })) {
            Self::Running
        } else if run_dir::is_finished(run) {
            Self::Finished
        } else {
            Self::Unfinished
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Running => "running",
            Self::Unfinished => "unfinished",
        }
    }
}

/// The runs in `folder` and below it. A run's folder has no other run in it.
pub(super) fn run_folders(folder: &Path) -> Vec<PathBuf> {
    let mut runs = Vec::new();
    collect(folder, MOST_LEVELS, &mut runs);
    runs.sort();
    runs
}

fn collect(folder: &Path, levels: usize, runs: &mut Vec<PathBuf>) {
    if folder.join(RESOLVED_CONFIG).is_file() {
        runs.push(folder.to_owned());
        return;
    }
    if levels == 0 {
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        // Not by way of a link, which may lead back.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), levels - 1, runs);
        }
    }
}

impl RunSummary {
    fn read(run: &Path) -> Self {
        let json = |name: &str| tt_disk::read_json::<Json>(&run.join(name)).unwrap_or_default();
        let (config, summary) = (json(RESOLVED_CONFIG), json(SUMMARY));
        let row = |key| last_row_with(&run.join(METRICS), key).unwrap_or_default();
        let step = row("loss");
        let speed = summary["tokens_per_second"].as_f64();
        Self {
            run: run.to_owned(),
            name: config["name"].as_str().map(str::to_owned),
            state: State::of(run),
            step: step["step"].as_u64(),
            loss: step["loss"].as_f64(),
            val_loss: row("val_loss")["val_loss"].as_f64(),
            tokens_per_second: speed.or(step["tokens_per_second"].as_f64()),
        }
    }
}

impl RunsOrder {
    /// Losses with the least first, steps and speed with the most; what is not known comes last.
    fn compare(self, a: &RunSummary, b: &RunSummary) -> Ordering {
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        let most = |a: Option<f64>, b: Option<f64>| least(a.map(|x| -x), b.map(|x| -x));
        match self {
            Self::Run => Ordering::Equal,
            Self::State => a.state.cmp(&b.state),
            Self::Step => b.step.cmp(&a.step),
            Self::Loss => least(a.loss, b.loss),
            Self::ValLoss => least(a.val_loss, b.val_loss),
            Self::Speed => most(a.tokens_per_second, b.tokens_per_second),
        }
    }
}

fn table(runs: &[RunSummary]) -> Table {
    let (text, figure) = (Column::left(), Column::right());
    let mut table = Table::new([text, text, figure, figure, figure, figure, text]);
    table.row([
        "run", "state", "step", "loss", "val_loss", "tokens/s", "name",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let loss = |loss: Option<f64>| or_dash(loss.map(|loss| format!("{loss:.4}")));
    for run in runs {
        table.row([
            run.run.display().to_string(),
            run.state.name().to_owned(),
            or_dash(run.step.map(|step| step.to_string())),
            loss(run.loss),
            loss(run.val_loss),
            or_dash(run.tokens_per_second.map(number::count)),
            run.name.clone().unwrap_or_default(),
        ]);
    }
    table
}
