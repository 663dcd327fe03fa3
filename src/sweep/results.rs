//! What a sweep ends with: jobs in order of the metric, as a table on screen, as `sweep.csv` and as `sweep.svg`.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::Value;
use tt_metrics::last_row_with;
use tt_report::{Column, Point, Scatter, Table, csv_line, number};
use tt_run::run_dir::{METRICS, RESOLVED_CONFIG, SUMMARY};

use crate::sweep::config::SweepConfig;
use crate::sweep::job::{JobState, JobStatus, SweepJob};

/// More rows than this are left to the file.
const MOST_ROWS: usize = 40;

/// Every job with its result, the best first.
pub(crate) struct SweepResults {
    pub(crate) metric: String,
    /// The keys whose values differ between jobs.
    pub(crate) keys: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    pub(crate) num: usize,
    pub(crate) status: JobStatus,
    exit_code: Option<i32>,
    /// One for each of the results' keys; empty where the job does not set it.
    pub(crate) values: Vec<String>,
    pub(crate) metric: Option<f64>,
    folder: String,
}

impl SweepResults {
    pub(crate) fn new(
        config: &SweepConfig,
        folder: &Path,
        jobs: &[SweepJob],
        states: &[JobState],
    ) -> Self {
        let compared = compared_by(folder, config, jobs);
        let overrides: Vec<_> = jobs.iter().map(|job| assignments(&job.overrides)).collect();
        let keys = swept(&overrides);
        let mut rows: Vec<_> = jobs
            .iter()
            .zip(states)
            .zip(&overrides)
            .map(|((job, state), overrides)| {
                let value = |key: &String| overrides.get(key).cloned().unwrap_or_default();
                Row {
                    num: job.num,
                    status: state.status,
                    exit_code: state.exit_code,
                    values: keys.iter().map(value).collect(),
                    metric: metric(&folder.join(&job.subdir), &compared),
                    folder: job.subdir.display().to_string(),
                }
            })
            .collect();
        // Stable: equals stay in the order of the jobs. What has not finished is not compared with what has.
        rows.sort_by(|a, b| {
            let place = |row: &Row| (row.status != JobStatus::Finished, row.metric.is_none());
            let sign = if config.minimize { 1.0 } else { -1.0 };
            let score = |row: &Row| sign * row.metric.unwrap_or_default();
            place(a).cmp(&place(b)).then(score(a).total_cmp(&score(b)))
        });
        Self {
            metric: compared,
            keys,
            rows,
        }
    }

    /// The best finished job.
    pub(crate) fn best(&self) -> Option<&Row> {
        let best = self.rows.first();
        best.filter(|row| row.status == JobStatus::Finished && row.metric.is_some())
    }

    /// The folders in `base` of the jobs that have run, the best ones.
    pub(crate) fn best_folders(&self, base: &Path, most: usize) -> Vec<PathBuf> {
        let folders = self.rows.iter().map(|row| base.join(&row.folder));
        let runs = folders.filter(|folder| folder.join(RESOLVED_CONFIG).is_file());
        runs.take(most).collect()
    }

    pub(crate) fn table(&self) -> String {
        // Besides the keys: job, metric and status.
        let mut table = Table::new(vec![Column::left(); self.keys.len() + 3]);
        table.row(self.header(&["job"], &["status"]));
        for row in self.rows.iter().take(MOST_ROWS) {
            let mut cells = vec![row.num.to_string()];
            cells.extend(row.values.iter().cloned());
            cells.push(row.metric.map_or("-".to_owned(), number::result));
            cells.push(row.status.name().to_owned());
            table.row(cells);
        }
        if let Some(more) = self.rows.len().checked_sub(MOST_ROWS).filter(|&n| n > 0) {
            table.line(format!("and {more} more in sweep.csv"));
        }
        table.to_string()
    }

    /// The metric of finished jobs against each swept key, if there is any.
    pub(crate) fn plot(&self) -> Option<Scatter> {
        let best = self.best()?.num;
        if self.keys.is_empty() {
            return None;
        }
        let rows = self.rows.iter();
        let finished = rows.filter(|row| row.status == JobStatus::Finished);
        let point = |row: &Row| {
            Some(Point {
                values: row.values.clone(),
                measured: row.metric?,
                is_best: row.num == best,
            })
        };
        Some(Scatter {
            measure: self.metric.clone(),
            keys: self.keys.clone(),
            points: finished.filter_map(point).collect(),
        })
    }

    pub(crate) fn csv(&self) -> String {
        let mut text = csv_line(&self.header(&["job"], &["status", "exit_code", "folder"]));
        for row in &self.rows {
            let mut cells = vec![row.num.to_string()];
            cells.extend(row.values.iter().cloned());
            cells.push(
                row.metric
                    .map_or(String::new(), |metric| metric.to_string()),
            );
            cells.push(row.status.name().to_owned());
            cells.push(row.exit_code.map_or(String::new(), |code| code.to_string()));
            cells.push(row.folder.clone());
            text.push_str(&csv_line(&cells));
        }
        text
    }

    fn header(&self, before: &[&str], after: &[&str]) -> Vec<String> {
        let keys = self.keys.iter().map(String::as_str);
        let columns = before.iter().copied().chain(keys);
        let columns = columns.chain([self.metric.as_str()]);
        columns
            .chain(after.iter().copied())
            .map(str::to_owned)
            .collect()
    }
}

/// Overrides as (key, value). A value may hold `=`, a key cannot.
fn assignments(overrides: &[String]) -> IndexMap<String, String> {
    let pairs = overrides.iter().map(|text| match text.split_once('=') {
        Some((key, value)) => (key.trim_start_matches('+').to_owned(), value.to_owned()),
        None => (text.clone(), String::new()), // `~key`
    });
    pairs.collect()
}

fn swept(overrides: &[IndexMap<String, String>]) -> Vec<String> {
    let Some(first) = overrides.first() else {
        return Vec::new();
    };
    let differs = |key: &&String| {
        overrides
            .iter()
            .any(|other| other.get(*key) != first.get(*key))
    };
    first.keys().filter(differs).cloned().collect()
}

/// What tells each job from the others: its values of the swept keys.
pub(crate) fn labels(jobs: &[SweepJob]) -> Vec<String> {
    let overrides: Vec<_> = jobs.iter().map(|job| assignments(&job.overrides)).collect();
    let keys = swept(&overrides);
    let label = |overrides: &IndexMap<String, String>| {
        let value = |key| overrides.get(key).map(|value| format!("{key}={value}"));
        keys.iter().filter_map(value).collect::<Vec<_>>().join(" ")
    };
    overrides.iter().map(label).collect()
}

/// The key that is configured, or the loss that the jobs minimise: where that is not their cross-entropy, as with
/// preferences, the latter may well get worse.
fn compared_by(folder: &Path, config: &SweepConfig, jobs: &[SweepJob]) -> String {
    const OBJECTIVE: &str = "final_val_objective";
    if let Some(name) = &config.metric {
        return name.clone();
    }
    let summaries = jobs
        .iter()
        .filter_map(|job| summary(&folder.join(&job.subdir)));
    let summaries: Vec<Value> = summaries.collect();
    let have_one = |summary: &Value| summary.get(OBJECTIVE).is_some();
    let name = match !summaries.is_empty() && summaries.iter().all(have_one) {
        true => OBJECTIVE,
        false => "final_val_loss",
    };
    name.to_owned()
}

fn summary(folder: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join(SUMMARY)).ok()?;
    serde_json::from_str(&text).ok()
}

fn metric(folder: &Path, name: &str) -> Option<f64> {
    let in_summary = summary(folder).and_then(|summary| summary.get(name)?.as_f64());
    in_summary.or_else(|| {
        last_row_with(&folder.join(METRICS), name)?
            .get(name)?
            .as_f64()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results(config: SweepConfig, ended: &[(&str, JobStatus, Option<f64>)]) -> SweepResults {
        let summary = |loss: f64| json!({ "final_val_loss": loss });
        results_with(config, ended, &summary)
    }

    fn results_with(
        config: SweepConfig,
        ended: &[(&str, JobStatus, Option<f64>)],
        summary: &dyn Fn(f64) -> Value,
    ) -> SweepResults {
        let folder = tempfile::tempdir().unwrap();
        let mut jobs = Vec::new();
        let mut states = Vec::new();
        for (num, (value, status, loss)) in ended.iter().enumerate() {
            let job = SweepJob {
                num,
                overrides: vec!["+model=qwen2".into(), format!("lr={value}")],
                config: json!({}),
                subdir: num.to_string().into(),
            };
            if let Some(loss) = loss {
                let path = folder.path().join(&job.subdir);
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join(SUMMARY), summary(*loss).to_string()).unwrap();
            }
            states.push(JobState {
                status: *status,
                exit_code: Some(0),
                ..JobState::pending(&job)
            });
            jobs.push(job);
        }
        SweepResults::new(&config, folder.path(), &jobs, &states)
    }

    const ENDED: &[(&str, JobStatus, Option<f64>)] = &[
        ("1e-3", JobStatus::Finished, Some(2.5)),
        ("1e-4", JobStatus::Failed, None),
        ("[1,2]", JobStatus::Finished, Some(2.25)),
    ];

    fn order(results: &SweepResults) -> Vec<usize> {
        results.rows.iter().map(|row| row.num).collect()
    }

    #[test]
    fn the_best_comes_first_and_what_has_not_finished_last() {
        let least = results(SweepConfig::default(), ENDED);
        assert_eq!(order(&least), [2, 0, 1]);
        assert_eq!(least.best().map(|row| row.num), Some(2));
        let config = SweepConfig {
            minimize: false,
            ..SweepConfig::default()
        };
        assert_eq!(order(&results(config, ENDED)), [0, 2, 1]);
    }

    #[test]
    fn only_keys_that_differ_are_columns() {
        assert_eq!(results(SweepConfig::default(), ENDED).keys, ["lr"]);
    }

    #[test]
    fn the_table_lines_up() {
        assert_eq!(
            results(SweepConfig::default(), ENDED).table(),
            "job  lr     final_val_loss  status\n\
             2    [1,2]  2.2500          finished\n\
             0    1e-3   2.5000          finished\n\
             1    1e-4   -               failed\n"
        );
    }

    #[test]
    fn the_csv_quotes_what_needs_it() {
        assert_eq!(
            results(SweepConfig::default(), ENDED).csv(),
            "job,lr,final_val_loss,status,exit_code,folder\n\
             2,\"[1,2]\",2.25,finished,0,2\n\
             0,1e-3,2.5,finished,0,0\n\
             1,1e-4,,failed,0,1\n"
        );
    }

    #[test]
    fn jobs_with_an_objective_of_their_own_are_compared_by_it() {
        // Of preferences: the better the objective, the worse the cross-entropy.
        let summary =
            |loss: f64| json!({"final_val_loss": 9.0 - loss, "final_val_objective": loss});
        let results = results_with(SweepConfig::default(), ENDED, &summary);
        assert_eq!(results.metric, "final_val_objective");
        assert_eq!(results.best().unwrap().metric, Some(2.25));
    }

    #[test]
    fn a_metric_may_come_from_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let row = "{\"step\":1,\"grad_norm\":0.5}\n";
        std::fs::write(folder.path().join("metrics.jsonl"), row).unwrap();
        assert_eq!(metric(folder.path(), "grad_norm"), Some(0.5));
        assert_eq!(metric(folder.path(), "final_val_loss"), None);
    }
}
