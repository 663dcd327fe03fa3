//! How far a job has come, as the last row of its `metrics.jsonl` says.

use std::path::Path;
use std::time::Duration;

use tt_metrics::last_row_with;
use tt_run::run_dir::METRICS;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    pub(crate) step: u64,
    pub(crate) loss: Option<f64>,
    pub(crate) step_time_ms: f64,
}

impl Progress {
    /// The last step on disk, if there is one.
    pub(crate) fn read(job_folder: &Path) -> Option<Self> {
        last_row_with(&job_folder.join(METRICS), "loss").map(|row| Self {
            step: row["step"].as_u64().unwrap_or_default(),
            loss: row["loss"].as_f64(),
            step_time_ms: row["step_time_ms"].as_f64().unwrap_or_default(),
        })
    }

    /// Time left until `num_steps`, at the pace of the last step.
    pub(crate) fn time_left(&self, num_steps: u64) -> Duration {
        let steps = num_steps.saturating_sub(self.step);
        let seconds = self.step_time_ms * steps as f64 / 1e3;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress_of(rows: &str) -> Option<Progress> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.jsonl"), rows).unwrap();
        Progress::read(folder.path())
    }

    #[test]
    fn the_last_whole_step_counts() {
        let rows = "{\"step\":1,\"loss\":3.0,\"step_time_ms\":10.0}\n\
                    {\"step\":2,\"loss\":2.5,\"step_time_ms\":20.0}\n\
                    {\"step\":2,\"val_loss\":2.0}\n{\"step\":3,\"lo";
        let progress = progress_of(rows).unwrap();
        assert_eq!((progress.step, progress.loss), (2, Some(2.5)));
        assert_eq!(progress.time_left(5), Duration::from_millis(60));
        assert_eq!(progress.time_left(1), Duration::ZERO);
    }

    #[test]
    fn a_loss_that_is_no_number_is_none() {
        assert_eq!(
            progress_of("{\"step\":1,\"loss\":null}\n").unwrap().loss,
            None
        );
    }

    #[test]
    fn without_a_record_there_is_no_progress() {
        assert_eq!(progress_of(""), None);
        assert_eq!(Progress::read(Path::new("nowhere")), None);
    }
}
