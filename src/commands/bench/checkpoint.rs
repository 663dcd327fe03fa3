//! `bench checkpoint`: saving the whole state of the run after a step, and taking it up again, in a folder beside those of
//! runs that is removed however this ends. What is read back is in the system's cache.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tempfile::TempDir;
use tt_config::{Composition, Missing, Node};
use tt_launch::StopSignal;
use tt_report::number;
use tt_run::OutputDir;
use tt_tensor::Device;
use tt_train::{StopFlag, TimedSave, timed_load, timed_save, timed_step};

use super::config::BenchConfig;
use super::job::Job;
use super::report::{Report, ms};
use super::samples::{median, samples};
use crate::failure::Failure;
use crate::setup::Setup;

/// The figures, or what to exit with if a signal came first.
pub(super) fn measure(
    setup: Setup,
    composition: &Composition,
    device: Device,
    config: &BenchConfig,
) -> Result<Result<Report, ExitCode>, Failure> {
    let checkpoint_config = setup.trainer_config.checkpoint.clone();
    let mut job = Job::new(setup, composition, device)?;
    // The optimizers' state is there from the first step on.
    timed_step(&mut job.training, &mut *job.trainer, &job.batches)?;
    let stop = StopFlag::default();
    let signal = StopSignal::install_silently(stop.shared()).map_err(Failure::run)?;
    // From here on a signal waits until the folder is gone.
    signal.save_first();
    let folder = Folder::new(&output_root(composition)?).map_err(Failure::Request)?;
    let go_on = || {
        if stop.is_requested() {
            return Err(Failure::Run(anyhow!("interrupted")));
        }
        Ok(())
    };
    // Nothing is warm that a save would find so, and each is as large as the run's.
    let without_warmup = BenchConfig {
        warmup: 0,
        ..config.clone()
    };
    let mut count = 0;
    let made = samples(&without_warmup, || {
        count += 1;
        let dir = folder.path().join(count.to_string());
        let (training, trainer) = (&mut job.training, &mut *job.trainer);
        let saved = timed_save(training, trainer, &dir, checkpoint_config.clone())?;
        go_on()?;
        let load = timed_load(training, trainer, &saved.saved.dir)?;
        std::fs::remove_dir_all(&dir).map_err(Failure::run)?;
        go_on()?;
        Ok(Some((saved, load)))
    });
    folder.remove().map_err(Failure::Run)?;
    if let Some(code) = signal.exit_code() {
        return Ok(Err(ExitCode::from(code)));
    }
    Ok(Ok(report(made?)))
}

fn report(made: Vec<(TimedSave, Duration)>) -> Report {
    let count = made.len();
    let bytes = made.first().map_or(0, |(saved, _)| saved.saved.num_bytes);
    let middle = |time: &dyn Fn(&(TimedSave, Duration)) -> Duration| {
        let times: Vec<_> = made.iter().map(time).collect();
        median(times, |&it| it).unwrap_or_default()
    };
    let held = middle(&|(saved, _)| saved.held);
    let save = middle(&|(saved, _)| saved.time);
    let load = middle(&|(_, load)| *load);
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;

    let mut report = Report::default();
    report.fact("bytes", bytes);
    report.fact("save_seconds", save.as_secs_f64());
    report.fact("save_gb_per_second", speed(save));
    report.fact("held_ms", ms(held));
    report.fact("load_seconds", load.as_secs_f64());
    report.fact("load_gb_per_second", speed(load));
    report.fact("saves", count);
    let shown = |time: Duration| format!("{:.3} s", time.as_secs_f64());
    let gb = |time| format!("{:.2} GB/s", speed(time));
    report.row(
        "checkpoint",
        number::bytes(bytes),
        format!("median of {count}"),
    );
    report.row("  save", shown(save), gb(save));
    report.row("  training held", shown(held), "");
    report.row("  load", shown(load), gb(load));
    report
}

/// The folder that runs make theirs in.
fn output_root(composition: &Composition) -> Result<PathBuf, Failure> {
    const KEY: &str = "hydra.run.dir";
    let run_dir = composition.resolved(KEY, Missing::Refuse)?;
    let pattern = composition.get(KEY).and_then(Node::as_str);
    let run_dir = run_dir.as_str().unwrap_or_default();
    let dir = OutputDir::new(run_dir, pattern.unwrap_or_default());
    let mut ancestors = dir.path.ancestors();
    let root = ancestors.nth(dir.folders_by_clock.max(1));
    Ok(match root {
        Some(root) if root != Path::new("") => root.to_owned(),
        _ => PathBuf::from("."),
    })
}

/// A folder that is removed, with what had to be made for it.
struct Folder {
    dir: TempDir,
    /// The folders around it that were not there, the innermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let missing = root.ancestors().take_while(|it| !it.exists());
        let missing = missing.filter(|it| *it != Path::new(""));
        let made: Vec<_> = missing.map(Path::to_owned).collect();
        let why = || format!("cannot make a folder in {}", root.display());
        std::fs::create_dir_all(root).with_context(why)?;
        let dir = tempfile::Builder::new().prefix(".bench-").tempdir_in(root);
        Ok(Self {
            dir: dir.with_context(why)?,
            made,
        })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn remove(self) -> anyhow::Result<()> {
        self.dir.close().context("the folder of the checkpoint")?;
        // A run may have begun there meanwhile.
        let _ = self.made.iter().try_for_each(std::fs::remove_dir);
        Ok(())
    }
}
