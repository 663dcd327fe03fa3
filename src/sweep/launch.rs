//! Runs the jobs of a sweep, some at a time, each in a process of its own: what ends one does not end another.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tt_launch::child::Pool;
use tt_run::quote::quoted;
use tt_run::run_dir;
use tt_run::{Resume, RunDir, RunDirError};
use tt_train::StopFlag;

use crate::sweep::config::OnFailure;
use crate::sweep::display::Display;
use crate::sweep::job::{self, JobState, JobStatus, SweepJob};
use crate::sweep::plan::SweepPlan;

/// What a job prints.
const LOG: &str = "train.log";

/// How often processes are looked after.
const PERIOD: Duration = Duration::from_millis(50);

/// How long a process left over from a killed sweep may take to save and let go of its folder.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the processes of all jobs have in common.
pub(crate) struct Launcher<'a> {
    pub(crate) plan: &'a SweepPlan,
    /// The sweep's folder, an absolute path.
    pub(crate) folder: &'a Path,
    pub(crate) program: PathBuf,
    /// The command and the flags that say where configs are.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) stop: StopFlag,
}

impl Launcher<'_> {
    pub(crate) fn folder_of(&self, job: &SweepJob) -> PathBuf {
        self.folder.join(&job.subdir)
    }

    /// Runs what is not finished; gives the state of every job, in their order.
    pub(crate) fn run(&self, display: &mut Display) -> anyhow::Result<Vec<JobState>> {
        let jobs = &self.plan.jobs;
        let mut states = Vec::with_capacity(jobs.len());
        let mut refused = Vec::new();
        for job in jobs {
            states.push(self.state_before(job).unwrap_or_else(|error| {
                refused.push((job, error));
                JobState::failed(job)
            }));
        }
        display.begin(jobs, &states);
        for (job, error) in &refused {
            display.ended(job, &states[job.num], &format!("{error:#}"));
        }

        let is_refused = |job: &SweepJob| refused.iter().any(|(other, _)| other.num == job.num);
        let todo = jobs
            .iter()
            .filter(|job| states[job.num].status != JobStatus::Finished && !is_refused(job));
        let mut waiting: VecDeque<&SweepJob> = todo.collect();
        let mut running: Pool<&SweepJob> = Pool::new(self.plan.n_jobs);
        let (mut is_stopping, mut has_failed) = (false, !refused.is_empty());
        let stops = self.plan.config.on_failure == OnFailure::Stop;
        let is_halted = |is_stopping, has_failed| is_stopping || (stops && has_failed);
        loop {
            if !is_stopping && (self.stop.is_requested() || (stops && has_failed)) {
                is_stopping = true;
                running.stop();
            }
            while !is_halted(is_stopping, has_failed) && running.has_room() {
                let Some(job) = waiting.pop_front() else {
                    break;
                };
                match self.start(job, &states[job.num], &mut running) {
                    Ok(state) => {
                        states[job.num] = state;
                        display.started(job, &self.folder_of(job));
                    }
                    Err(error) => {
                        states[job.num] = JobState::failed(job);
                        has_failed = true;
                        display.ended(job, &states[job.num], &format!("{error:#}"));
                    }
                }
            }
            let is_over = is_halted(is_stopping, has_failed) || waiting.is_empty();
            if running.is_empty() && is_over {
                return Ok(states);
            }
            thread::sleep(PERIOD);
            display.refresh();
            for (job, exit) in running.take_ended()? {
                let state = &mut states[job.num];
                state.status = JobStatus::of(exit, is_stopping);
                state.exit_code = exit.code();
                has_failed |= state.status == JobStatus::Failed;
                let mut how = format!("{exit}, see {}", job.subdir.join(LOG).display());
                // What the job itself has left there says as much when the sweep goes on.
                if let Err(error) = state.write(&self.folder_of(job)) {
                    how = format!("{how}; {:#}", anyhow::Error::from(error));
                }
                display.ended(job, state, &how);
            }
        }
    }

    /// What an earlier sweep left of a job; that a job is pending is on disk before any job starts.
    fn state_before(&self, job: &SweepJob) -> anyhow::Result<JobState> {
        let folder = self.folder_of(job);
        if self.plan.resume != Resume::Never
            && let Some(state) = JobState::earlier(&folder, job)
            && (state.status == JobStatus::Finished || self.can_go_on(&folder))
        {
            return Ok(state);
        }
        let run_dir = claim(&folder, &self.stop)?;
        if run_dir.is_used() || job::is_used(&folder) {
            run_dir.set_aside()?;
        }
        let state = JobState::pending(job);
        state.write(&folder)?;
        Ok(state)
    }

    /// A job that began from another run's checkpoint begins there again until it has one of its own.
    fn can_go_on(&self, folder: &Path) -> bool {
        self.plan.resume == Resume::Auto || run_dir::checkpoints(folder).exists()
    }

    fn start<'j>(
        &self,
        job: &'j SweepJob,
        before: &JobState,
        running: &mut Pool<&'j SweepJob>,
    ) -> anyhow::Result<JobState> {
        let folder = self.folder_of(job);
        drop(claim(&folder, &self.stop)?);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(LOG))
            .with_context(|| format!("cannot write {LOG} in {}", folder.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(&self.plan.hydra_overrides)
            .args(&job.overrides)
            .arg(format!("hydra.sweep.dir={}", quoted(self.folder)))
            .arg(format!("hydra.run.dir={}", quoted(&folder)))
            .arg(format!("hydra.job.num={}", job.num))
            .arg(format!("hydra.job.id={}", job.num))
            .stdout(log.try_clone()?)
            .stderr(log);
        if before.status != JobStatus::Pending {
            // The folder holds this very job: it goes on from there, wherever `resume` let it begin.
            command.arg("resume=auto");
        }
        // For W&B, where the jobs of a sweep belong together unless the user has a better name for them.
        if std::env::var_os("WANDB_RUN_GROUP").is_none() {
            command.env("WANDB_RUN_GROUP", self.group());
        }
        if let Some(threads) = self.threads() {
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        let state = JobState {
            status: JobStatus::Running,
            exit_code: None,
            ..JobState::pending(job)
        };
        state.write(&folder)?;
        running
            .start(job, &mut command)
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(state)
    }

    /// The sweep by the last parts of its folder, such as `2026-01-31/12-00-00`.
    fn group(&self) -> String {
        let parts: Vec<_> = self
            .folder
            .iter()
            .map(|part| part.to_string_lossy())
            .collect();
        parts[parts.len().saturating_sub(2)..].join("/")
    }

    /// Threads for each of the jobs that work side by side; `device.threads` goes before it.
    fn threads(&self) -> Option<usize> {
        let at_a_time = self.plan.n_jobs.min(self.plan.jobs.len());
        (at_a_time > 1).then(|| (rayon::current_num_threads() / at_a_time).max(1))
    }
}

/// Takes the folder of a job, waiting for a process that is just letting go of it.
fn claim(folder: &Path, stop: &StopFlag) -> Result<RunDir, RunDirError> {
    let started = Instant::now();
    loop {
        match RunDir::open(folder) {
            Err(RunDirError::InUse { .. })
                if started.elapsed() < PATIENCE && !stop.is_requested() =>
            {
                thread::sleep(PERIOD);
            }
            claimed => return claimed,
        }
    }
}
