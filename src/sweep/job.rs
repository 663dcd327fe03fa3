//! One job of a sweep, and the file in its folder that says how far it has come.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tt_launch::{EXIT_INTERRUPTED, EXIT_PREEMPTED};
use tt_run::{run_dir, same_run};

/// The state file, in the job's folder.
const STATE: &str = "job.json";

/// What one job is to do.
#[derive(Debug)]
pub(crate) struct SweepJob {
    /// `hydra.job.num`.
    pub(crate) num: usize,
    /// The task's overrides, each with one value.
    pub(crate) overrides: Vec<String>,
    /// The resolved config.
    pub(crate) config: Value,
    /// `hydra.sweep.subdir`: where it works, inside the sweep's folder.
    pub(crate) subdir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobStatus {
    Pending,
    /// At work, or its sweep was killed while it was.
    Running,
    Finished,
    Failed,
    /// Stopped from outside, after saving.
    Interrupted,
}

impl JobStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// What the end of a job's process says about the job.
    pub(crate) fn of(exit: ExitStatus, is_stopping: bool) -> Self {
        const INTERRUPTED: i32 = EXIT_INTERRUPTED as i32;
        const PREEMPTED: i32 = EXIT_PREEMPTED as i32;
        match exit.code() {
            Some(0) => Self::Finished,
            Some(INTERRUPTED | PREEMPTED) => Self::Interrupted,
            // Stopped before it could handle that.
            None if is_stopping => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

/// What the state file holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobState {
    pub(crate) status: JobStatus,
    /// Of the last attempt; null if there was none, or a signal ended it.
    pub(crate) exit_code: Option<i32>,
    pub(crate) num: usize,
    pub(crate) overrides: Vec<String>,
    /// Decides whether an earlier attempt in this folder was at the same job.
    pub(crate) config: Value,
}

impl JobState {
    pub(crate) fn pending(job: &SweepJob) -> Self {
        Self {
            status: JobStatus::Pending,
            exit_code: None,
            num: job.num,
            overrides: job.overrides.clone(),
            config: job.config.clone(),
        }
    }

    /// One that could not be started.
    pub(crate) fn failed(job: &SweepJob) -> Self {
        Self {
            status: JobStatus::Failed,
            ..Self::pending(job)
        }
    }

    /// The state that an earlier attempt at the same job has left in `folder`. What cannot be read counts as none.
    pub(crate) fn earlier(folder: &Path, job: &SweepJob) -> Option<Self> {
        let text = fs::read_to_string(folder.join(STATE)).ok()?;
        let mut state: Self = serde_json::from_str(&text).ok()?;
        if !same_run(&state.config, &job.config) {
            return None;
        }
        // The summary is the run's own word; a sweep killed just then may not have heard it.
        if run_dir::is_finished(folder) {
            state.status = JobStatus::Finished;
        } else if matches!(state.status, JobStatus::Running | JobStatus::Finished) {
            state.status = JobStatus::Interrupted;
        }
        Some(state)
    }

    /// Replaces the file, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> tt_disk::Result<()> {
        tt_disk::write_json(&folder.join(STATE), self)
    }
}

/// Whether `folder` holds an attempt at any job.
pub(crate) fn is_used(folder: &Path) -> bool {
    folder.join(STATE).exists()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use serde_json::json;

    use super::*;

    fn job() -> SweepJob {
        SweepJob {
            num: 3,
            overrides: vec!["lr=0.1".into()],
            config: json!({"lr": 0.1}),
            subdir: "3".into(),
        }
    }

    fn left_as(status: JobStatus) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let state = JobState {
            status,
            ..JobState::pending(&job())
        };
        state.write(folder.path()).unwrap();
        folder
    }

    #[test]
    fn a_state_reads_back() {
        for status in [
            JobStatus::Pending,
            JobStatus::Failed,
            JobStatus::Interrupted,
        ] {
            let folder = left_as(status);
            let state = JobState::earlier(folder.path(), &job()).unwrap();
            assert_eq!((state.status, state.num), (status, 3));
        }
    }

    #[test]
    fn a_job_left_running_was_interrupted() {
        let folder = left_as(JobStatus::Running);
        let state = JobState::earlier(folder.path(), &job()).unwrap();
        assert_eq!(state.status, JobStatus::Interrupted);
    }

    #[test]
    fn a_summary_says_finished_and_its_absence_unfinished() {
        let folder = left_as(JobStatus::Running);
        fs::write(folder.path().join(run_dir::SUMMARY), "{}").unwrap();
        let status = |folder: &Path| JobState::earlier(folder, &job()).unwrap().status;
        assert_eq!(status(folder.path()), JobStatus::Finished);
        let folder = left_as(JobStatus::Finished);
        assert_eq!(status(folder.path()), JobStatus::Interrupted);
    }

    #[test]
    fn the_state_of_another_config_is_none() {
        let folder = left_as(JobStatus::Finished);
        let other = SweepJob {
            config: json!({"lr": 0.2}),
            ..job()
        };
        assert!(JobState::earlier(folder.path(), &other).is_none());
    }

    #[test]
    fn the_end_of_a_process_tells_the_status() {
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(JobStatus::of(code(0), false), JobStatus::Finished);
        assert_eq!(JobStatus::of(code(130), false), JobStatus::Interrupted);
        assert_eq!(JobStatus::of(code(75), true), JobStatus::Interrupted);
        assert_eq!(JobStatus::of(code(2), false), JobStatus::Failed);
        assert_eq!(JobStatus::of(killed, false), JobStatus::Failed);
        assert_eq!(JobStatus::of(killed, true), JobStatus::Interrupted);
    }
}
