//! What is seen while a sweep runs: on a terminal a live table of the jobs at work, below the lines of those that have
//! ended; elsewhere a line when a job starts and one when it ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tt_metrics::terminal;
use tt_report::{Column, Table, number};
use tt_train::TrainerConfig;

use crate::out;
use crate::sweep::job::{JobState, JobStatus, SweepJob};
use crate::sweep::progress::Progress;
use crate::sweep::results::labels;

/// How often the records of running jobs are read.
const PERIOD: Duration = Duration::from_millis(500);

pub(crate) struct Display {
    /// On a terminal.
    live: Option<Live>,
    /// What tells each job from the others.
    labels: Vec<String>,
    num_ended: usize,
    num_failed: usize,
    rows: BTreeMap<usize, Row>,
    refreshed: Instant,
}

struct Live {
    table: MultiProgress,
    /// The last line: how many jobs there are in each state.
    counts: ProgressBar,
}

/// A job at work.
struct Row {
    folder: PathBuf,
    num_steps: Option<u64>,
    /// Its line, if there is a live table.
    bar: Option<ProgressBar>,
}

impl Display {
    /// A live table if standard output is a terminal that can show one, and `logging.progress` leaves it to us.
    pub(crate) fn new(progress: Option<&str>) -> Self {
        let is_live = terminal::is_capable() && progress.is_none_or(|progress| progress == "auto");
        Self::with(is_live.then(ProgressDrawTarget::stdout))
    }

    fn with(target: Option<ProgressDrawTarget>) -> Self {
        let live = target.map(|target| {
            let table = MultiProgress::with_draw_target(target);
            let counts = table.add(line());
            Live { table, counts }
        });
        Self {
            live,
            labels: Vec::new(),
            num_ended: 0,
            num_failed: 0,
            rows: BTreeMap::new(),
            refreshed: Instant::now(),
        }
    }

    pub(crate) fn begin(&mut self, jobs: &[SweepJob], states: &[JobState]) {
        self.labels = labels(jobs);
        self.num_ended = states
            .iter()
            .filter(|state| state.status == JobStatus::Finished)
            .count();
        for (job, state) in jobs.iter().zip(states) {
            if state.status == JobStatus::Finished {
                self.print(&cells(
                    job.num,
                    "finished",
                    None,
                    "before",
                    &self.labels[job.num],
                ));
            }
        }
        self.count();
    }

    pub(crate) fn started(&mut self, job: &SweepJob, folder: &Path) {
        let bar = self
            .live
            .as_ref()
            .map(|live| live.table.insert_before(&live.counts, line()));
        if bar.is_none() {
            self.print(&cells(job.num, "running", None, "", &self.labels[job.num]));
        }
        let trainer = &job.config["trainer"];
        let default = trainer["num_epochs"].is_null();
        let default = default.then_some(TrainerConfig::DEFAULT_STEPS);
        let row = Row {
            folder: folder.to_owned(),
            num_steps: trainer["max_steps"].as_u64().or(default),
            bar,
        };
        self.rows.insert(job.num, row);
        self.draw();
    }

    /// A job has ended; `how` is for the user to read if it went wrong.
    pub(crate) fn ended(&mut self, job: &SweepJob, state: &JobState, how: &str) {
        let row = self.rows.remove(&job.num);
        let progress = row.as_ref().and_then(|row| Progress::read(&row.folder));
        let note = match state.status {
            JobStatus::Failed => how,
            _ => "",
        };
        let shown = progress.map(|progress| steps_and_loss(&progress, None));
        self.print(&cells(
            job.num,
            state.status.name(),
            shown,
            note,
            &self.labels[job.num],
        ));
        if let (Some(live), Some(bar)) = (&self.live, row.and_then(|row| row.bar)) {
            live.table.remove(&bar);
        }
        self.num_ended += 1;
        self.num_failed += usize::from(state.status == JobStatus::Failed);
        self.count();
    }

    /// Reads the records of running jobs again, if it is time to.
    pub(crate) fn refresh(&mut self) {
        if self.live.is_some() && self.refreshed.elapsed() >= PERIOD {
            self.draw();
        }
    }

    /// Takes the live table away.
    pub(crate) fn finish(&self) {
        if let Some(live) = &self.live {
            live.counts.finish_and_clear();
        }
    }

    fn draw(&mut self) {
        self.refreshed = Instant::now();
        for (num, row) in &self.rows {
            let Some(bar) = &row.bar else { continue };
            let progress = Progress::read(&row.folder);
            let shown = progress.map(|progress| steps_and_loss(&progress, row.num_steps));
            let left = progress
                .zip(row.num_steps)
                .map_or(String::new(), |(progress, steps)| {
                    format!("ETA {}", number::clock(progress.time_left(steps)))
                });
            bar.set_message(cells(*num, "running", shown, &left, &self.labels[*num]));
        }
        self.count();
    }

    fn count(&self) {
        let Some(live) = &self.live else { return };
        let running = self.rows.len();
        let pending = self.labels.len().saturating_sub(self.num_ended + running);
        live.counts.set_message(format!(
            "{}/{} jobs ended, {} of them failed; {running} running, {pending} pending",
            self.num_ended,
            self.labels.len(),
            self.num_failed
        ));
    }

    fn print(&self, line: &str) {
        match &self.live {
            // A terminal that has gone away is no reason to stop.
            Some(live) => drop(live.table.println(line)),
            None => out::line(line),
        }
    }
}

/// One line of text, cut off where the terminal ends.
fn line() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_msg}");
    ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Columns: job, status, step and loss, a note, what is swept.
fn cells(num: usize, status: &str, progress: Option<String>, note: &str, label: &str) -> String {
    const COLUMNS: [Column; 5] = [
        Column::left().width(7),
        Column::left().width(11),
        Column::left().width(27),
        Column::left().width(12),
        Column::left(),
    ];
    let job = format!("job {num:>3}");
    let mut table = Table::new(COLUMNS);
    table.row([
        job.as_str(),
        status,
        progress.as_deref().unwrap_or_default(),
        note,
        label,
    ]);
    table.to_string().trim_end().to_owned()
}

fn steps_and_loss(progress: &Progress, num_steps: Option<u64>) -> String {
    let step = match num_steps {
        Some(num_steps) => format!("step {}/{num_steps}", progress.step),
        None => format!("step {}", progress.step),
    };
    match progress.loss {
        Some(loss) => format!("{step}  loss {loss:.4}"),
        None => format!("{step}  loss NaN"),
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;
    use serde_json::json;

    use super::*;

    fn job(num: usize) -> SweepJob {
        SweepJob {
            num,
            overrides: vec![format!("seed={num}")],
            config: json!({"trainer": {"max_steps": 10}}),
            subdir: num.to_string().into(),
        }
    }

    #[test]
    fn the_live_table_shows_jobs_at_work_below_those_that_ended() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("metrics.jsonl"),
            "{\"step\":4,\"loss\":2.5,\"step_time_ms\":10000.0}\n",
        )
        .unwrap();
        let term = InMemoryTerm::new(20, 100);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let mut display = Display::with(Some(target));
        let jobs = [job(0), job(1), job(2)];
        let states: Vec<_> = jobs.iter().map(JobState::pending).collect();
        display.begin(&jobs, &states);
        display.started(&jobs[0], folder.path());
        display.started(&jobs[1], folder.path());
        let failed = JobState {
            status: JobStatus::Failed,
            ..states[0].clone()
        };
        display.ended(&jobs[0], &failed, "exit status: 1");
        display.draw();
        let screen = term.contents();
        let lines: Vec<_> = screen.lines().collect();
        assert_eq!(lines.len(), 3, "{screen}");
        assert!(lines[0].starts_with("job   0  failed"), "{screen}");
        assert!(lines[0].contains("exit status: 1"), "{screen}");
        assert!(lines[1].contains("step 4/10  loss 2.5000"), "{screen}");
        assert!(lines[1].contains("ETA 1:00"), "{screen}");
        assert_eq!(
            lines[2],
            "1/3 jobs ended, 1 of them failed; 1 running, 1 pending"
        );
    }
}
