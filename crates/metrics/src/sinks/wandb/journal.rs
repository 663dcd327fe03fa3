//! Writes the log of this process: rows of `metrics.jsonl` and what else there is to tell, on a thread of its own.
//!
//! A row of W&B is a step: `_step` is the number of the step, and the training row and the validation of one step are one
//! row. So the last row waits until another step begins or the run ends. A validation that an earlier process has left
//! out, of a step that is logged already, goes with the next row.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::log::Writer;
use super::record::{Items, Metric, Record, Run};
use super::segments::{self, Segment};
use super::settings::{ApiKey, Settings};
use super::shared::{Mark, Shared};
use super::system::System;
use super::timing::{Timing, seconds};
use super::{Mode, SummaryRule, WandbConfig, json as text};
use crate::environment::environment;
use crate::record::NON_FINITE;
use crate::sink::{End, RunInfo};

/// What a run steps by, for the site.
pub(super) const STEP_METRIC: &str = "trainer/step";
/// A record of millions of rows is read piece by piece.
const MAX_READ_BYTES: u64 = 16 << 20;
/// A longer patch says little.
const MAX_PATCH_BYTES: usize = 4 << 20;

/// A log that has been begun.
pub(super) struct Journal {
    log: Writer<File>,
    num_records: i64,
    id: String,
    shared: Arc<Shared>,
    timing: Timing,
    record: Tail,
    output: Option<Tail>,
    key: Option<ApiKey>,
    marks: Vec<Mark>,
    start_time: f64,
    runtime: f64,
    /// The step that is gathered.
    row: Option<Row>,
    /// Values of a step that is logged already.
    late: Items,
    last_step: Option<u64>,
    summary: Summary,
    system: Option<(System, Option<Instant>)>,
}

struct Row {
    step: u64,
    time: f64,
    items: Items,
}

impl Journal {
    /// Makes the folder of the log and writes who the run is. Gives all logs of the run, this one last.
    pub(super) fn begin(
        run: &RunInfo,
        config: &WandbConfig,
        settings: &Settings,
        shared: Arc<Shared>,
        transcript: Option<(PathBuf, u64)>,
    ) -> io::Result<(Self, Vec<Segment>)> {
        let id = settings.id.clone().unwrap_or_else(|| run.id.clone());
        let root = segments::root(settings.dir.as_deref().unwrap_or(&run.dir));
        // A name given by hand, in a folder of many runs, may also be another run's.
        let is_ours = settings.id.is_none() || settings.dir.is_none() || run.step > 0;
        let mut logs = if is_ours {
            segments::of_run(&root, &id)
        } else {
            Vec::new()
        };
        let extent = segments::rewind(&logs, run.step)?;
        // A log has whole seconds of it.
        let runtime = extent.runtime.ceil();
        let is_offline = settings.mode.value == Mode::Offline || settings.server.key.is_err();
        let start_time = now();
        let folder = make_folder(&root, is_offline, &id)?;
        let environment = environment();
        let git = |args: &[&str]| settings.has_git.then(|| git(args)).flatten();
        let segment_run = Run {
            id: id.clone(),
            entity: settings.entity.clone().unwrap_or_default(),
            project: settings.project.value.clone(),
            config: config_items(&run.config),
            group: settings.group.clone().unwrap_or_default(),
            job_type: settings.job_type.clone().unwrap_or_default(),
            name: settings.name.clone().unwrap_or_default(),
            notes: settings.notes.clone().unwrap_or_default(),
            tags: settings.tags.clone(),
            host: settings
                .host
                .clone()
                .or_else(|| Some(environment["host"].as_str()?.to_owned()))
                .unwrap_or_default(),
            git_remote: git(&["remote", "get-url", "origin"])
                .map(|url| without_password(&url))
                .unwrap_or_default(),
            git_commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
            starting_step: run.step,
            start_time,
            runtime: runtime as i64,
        };
        let key = settings.server.key.as_ref().ok();
        let key = key.map(|found| found.value.clone());
        let log = folder.join(format!("run-{id}.wandb"));
        let mut journal = Self {
            log: Writer::create(&log)?,
            num_records: 0,
            id,
            shared,
            timing: config.timing,
            record: Tail::new(run.dir.join("metrics.jsonl"), 0),
            output: transcript
                .filter(|_| config.console)
                .map(|(path, start)| Tail::new(path, start)),
            key,
            marks: Vec::new(),
            start_time,
            runtime,
            row: None,
            late: Items::new(),
            last_step: extent.last_step,
            summary: Summary::new(&config.summary),
            system: settings
                .has_system_metrics
                .then(|| (System::new(run.dir.clone()), None)),
        };
        let metrics = metrics(config);
        let patch = git(&["diff", "HEAD"]).filter(|_| settings.has_patch);
        let files =
            journal.write_files(&folder.join("files"), &environment, &segment_run, patch)?;
        journal.write(&Record::Header)?;
        journal.write(&Record::Run(Box::new(segment_run.clone())))?;
        for metric in metrics {
            journal.write(&Record::Metric(metric))?;
        }
        journal.write(&Record::Files(files))?;
        journal.sample_system()?;
        logs.push(Segment {
            log,
            run: segment_run,
        });
        Ok((journal, logs))
    }

    /// Until the run has ended.
    pub(super) fn keep(&mut self) -> io::Result<()> {
        loop {
            // Asked for first: what was logged before the end is then read.
            let ending = self.shared.ending().cloned();
            let num_records = self.num_records;
            self.read_rows()?;
            self.read_output()?;
            if let Some(end) = ending {
                return self.end(&end);
            }
            if self.num_records > num_records {
                self.write_summary()?;
            }
            self.sample_system()?;
            self.shared.pause(seconds(self.timing.poll), |shared| {
                shared.ending().is_some()
            });
        }
    }

    fn end(&mut self, end: &End) -> io::Result<()> {
        self.finish_row()?;
        if let (false, Some(step)) = (self.late.is_empty(), self.last_step) {
            // No other step comes: they get a row of their own.
            let items = Items::from([(STEP_METRIC.to_owned(), step.to_string())]);
            self.row = Some(Row {
                step: step + 1,
                time: now(),
                items,
            });
            self.finish_row()?;
        }
        self.write_summary()?;
        let code = match end {
            End::Finished => 0,
            End::Failed(_) => 1,
            End::Stopped => {
                self.write(&Record::Preempting)?;
                75
            }
        };
        let runtime = self.elapsed(now()) as i64;
        self.write(&Record::Exit { code, runtime })
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        self.num_records += 1;
        self.log.write(&record.encode(self.num_records, &self.id))
    }

    fn elapsed(&self, time: f64) -> f64 {
        self.runtime + (time - self.start_time).max(0.0)
    }

    fn read_rows(&mut self) -> io::Result<()> {
        let position = self.shared.position();
        self.marks.extend(self.shared.take_marks());
        let mut marks = std::mem::take(&mut self.marks).into_iter().peekable();
        loop {
            let lines = self.record.lines(Some(position))?;
            if lines.is_empty() {
                break;
            }
            for (line, end) in lines {
                while marks.next_if(|mark| mark.position < end).is_some() {}
                let mark = marks.next_if(|mark| mark.position == end);
                // Rows of earlier processes have none, nor those that came too thick.
                let time = mark.map_or_else(now, |mark| mark.time);
                if let Ok(Value::Object(row)) = serde_json::from_str(&line) {
                    self.take_row(row, time, end > self.shared.live_from())?;
                }
            }
        }
        self.marks = marks.collect();
        Ok(())
    }

    fn take_row(
        &mut self,
        mut row: Map<String, Value>,
        time: f64,
        is_live: bool,
    ) -> io::Result<()> {
        let Some(step) = row.shift_remove("step").and_then(|step| step.as_u64()) else {
            return Ok(());
        };
        let words = row.shift_remove(NON_FINITE);
        let values: Items = row
            .into_iter()
            .map(|(key, value)| {
                let word = words.as_ref().and_then(|words| words[&key].as_str());
                let value = word.map_or_else(|| value.to_string(), str::to_owned);
                (key, value)
            })
            .collect();
        for (key, value) in &values {
            self.summary.take(key, value);
        }
        self.summary.step = step;
        if self.last_step.is_some_and(|last| step <= last) {
            // What an earlier process had left to do when it logged the step.
            if is_live {
                self.late.extend(values);
            }
            return Ok(());
        }
        match &mut self.row {
            Some(row) if row.step == step => {
                row.items.extend(values);
                row.time = row.time.max(time);
            }
            _ => {
                self.finish_row()?;
                let mut items = Items::from([(STEP_METRIC.to_owned(), step.to_string())]);
                items.extend(values);
                self.row = Some(Row { step, time, items });
            }
        }
        Ok(())
    }

    fn finish_row(&mut self) -> io::Result<()> {
        let Some(row) = self.row.take() else {
            return Ok(());
        };
        let mut items = Items::from([
            ("_step".to_owned(), row.step.to_string()),
            ("_timestamp".to_owned(), text::number(row.time)),
            ("_runtime".to_owned(), text::seconds(self.elapsed(row.time))),
        ]);
        items.extend(row.items);
        items.extend(std::mem::take(&mut self.late));
        self.last_step = Some(row.step);
        let step = row.step;
        self.write(&Record::History { step, items })
    }

    fn write_summary(&mut self) -> io::Result<()> {
        let Some(step) = self.last_step else {
            return Ok(());
        };
        let time = now();
        let runtime = self.elapsed(time);
        let mut items = self.summary.items();
        items.insert("_step".to_owned(), step.to_string());
        items.insert("_timestamp".to_owned(), text::number(time));
        items.insert("_runtime".to_owned(), text::seconds(runtime));
        items.insert(STEP_METRIC.to_owned(), self.summary.step.to_string());
        let seconds = json!({"runtime": runtime as i64});
        items.insert("_wandb".to_owned(), seconds.to_string());
        self.write(&Record::Summary(items))
    }

    fn read_output(&mut self) -> io::Result<()> {
        let Some(output) = &mut self.output else {
            return Ok(());
        };
        // Without it the run is no worse.
        let lines = output.lines(None).unwrap_or_default();
        let time = now();
        for (line, _) in lines {
            let line = match &self.key {
                Some(key) => key.scrubbed(&line),
                None => line,
            };
            self.write(&Record::Output {
                is_error: false,
                time,
                line,
            })?;
        }
        Ok(())
    }

    fn sample_system(&mut self) -> io::Result<()> {
        let interval = seconds(self.timing.system);
        let Some((system, last)) = &mut self.system else {
            return Ok(());
        };
        if last.is_some_and(|last| last.elapsed() < interval) {
            return Ok(());
        }
        *last = Some(Instant::now());
        let items = system.sample();
        self.write(&Record::Stats { time: now(), items })
    }

    /// What is sent beside the rows; gives the names.
    fn write_files(
        &self,
        folder: &Path,
        environment: &Value,
        run: &Run,
        patch: Option<String>,
    ) -> io::Result<Vec<String>> {
        let scrubbed = |text: &str| match &self.key {
            Some(key) => key.scrubbed(text),
            None => text.to_owned(),
        };
        let mut names = vec!["wandb-metadata.json".to_owned()];
        let metadata = metadata(environment, run);
        fs::write(folder.join(&names[0]), scrubbed(&metadata.to_string()))?;
        if let Some(patch) = patch.filter(|text| !text.is_empty() && text.len() < MAX_PATCH_BYTES) {
            names.push("diff.patch".to_owned());
            fs::write(folder.join("diff.patch"), scrubbed(&format!("{patch}\n")))?;
        }
        Ok(names)
    }
}

fn make_folder(root: &Path, is_offline: bool, id: &str) -> io::Result<PathBuf> {
    let time = jiff::ZonedDateTime::now()
        .strftime("%Y%m%d_%H%M%S")
        .to_string();
    let kind = if is_offline { "offline-run" } else { "run" };
    let name = format!("{kind}-{time}-{id}");
    tt_disk::create_dir(root)?;
    let mut folder = root.join(&name);
    for number in 1.. {
        match fs::create_dir(&folder) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                folder = root.join(format!("{name}-{number}"));
            }
            Err(error) => return Err(error),
        }
    }
    fs::create_dir(folder.join("files"))?;
    Ok(folder)
}

/// Each key of the config as JSON.
fn config_items(config: &Value) -> Items {
    let fields = config.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), value.to_string()))
        .collect()
}

/// What the site draws over what, and sums up how.
fn metrics(config: &WandbConfig) -> Vec<Metric> {
    let axis = config.x_axis.as_str();
    let named = |name: &str, step_metric: &str| Metric {
        name: name.to_owned(),
        step_metric: step_metric.to_owned(),
        ..Metric::default()
    };
    let mut metrics = vec![named(STEP_METRIC, "")];
    if axis != "tokens" {
        metrics.push(named("tokens", STEP_METRIC));
    }
    if axis != STEP_METRIC {
        metrics.push(named(axis, ""));
    }
    for (name, rules) in &config.summary {
        metrics.push(Metric {
            summary: rules.clone(),
            ..named(name, axis)
        });
    }
    metrics.push(Metric {
        glob: "*".to_owned(),
        step_metric: axis.to_owned(),
        ..Metric::default()
    });
    metrics
}

fn metadata(environment: &Value, run: &Run) -> Value {
    let cpu = &environment["cpu"];
    let args = environment["args"].as_array().cloned().unwrap_or_default();
    let started = jiff::Timestamp::from_microsecond((run.start_time * 1e6) as i64);
    json!({
        "os": std::env::consts::OS,
        "startedAt": started.unwrap_or_default().to_string(),
        "program": "tpu-train",
        "args": args.get(1..).unwrap_or_default(),
        "root": environment["working_dir"],
        "host": run.host,
        "executable": args.first(),
        "cpu_count_logical": cpu["num_cores"],
        "cpu": {"model": cpu["model"]},
        "memory": {"total": environment["memory_bytes"].as_u64().map(|bytes| bytes.to_string())},
        "git": {"remote": run.git_remote, "commit": run.git_commit},
        "version": environment["version"],
        "rustc": environment["rustc"],
    })
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .env("GIT_OPTIONAL_LOCKS", "0") // only looking
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    output.status.success().then_some(text)
}

/// `https://user:password@host/...` as it may be shown.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.split_once('@')) {
        (Some((scheme, rest)), Some((before, after))) if !before.contains(['?', '#']) => {
            let has_user = rest
                .split('/')
                .next()
                .is_some_and(|host| host.contains('@'));
            if has_user {
                format!("{scheme}://{after}")
            } else {
                url.to_owned()
            }
        }
        _ => url.to_owned(),
    }
}

/// Whole lines of a file that grows.
struct Tail {
    path: PathBuf,
    position: u64,
}

impl Tail {
    fn new(path: PathBuf, position: u64) -> Self {
        Self { path, position }
    }

    /// The next that have come, each with the position behind it, up to `end`.
    fn lines(&mut self, end: Option<u64>) -> io::Result<Vec<(String, u64)>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let end = end.unwrap_or(file.metadata()?.len());
        if end <= self.position {
            return Ok(Vec::new());
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        let length = (end - self.position).min(MAX_READ_BYTES);
        file.take(length).read_to_end(&mut bytes)?;
        let mut lines = Vec::new();
        let mut position = self.position;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else {
                break;
            };
            position += line.len() as u64 + 1;
            lines.push((String::from_utf8_lossy(line).into_owned(), position));
        }
        self.position = position;
        Ok(lines)
    }
}

/// The last value of every metric, or what else was asked for.
struct Summary {
    rules: IndexMap<String, Vec<SummaryRule>>,
    values: IndexMap<String, Totals>,
    step: u64,
}

struct Totals {
    first: String,
    last: String,
    min: f64,
    max: f64,
    sum: f64,
    count: u64,
}

impl Summary {
    fn new<'a>(rules: impl IntoIterator<Item = (&'a String, &'a Vec<SummaryRule>)>) -> Self {
        let rules = rules.into_iter();
        Self {
            rules: rules
                .map(|(key, rules)| (key.clone(), rules.clone()))
                .collect(),
            values: IndexMap::new(),
            step: 0,
        }
    }

    fn take(&mut self, key: &str, value: &str) {
        let totals = self.values.entry(key.to_owned());
        let totals = totals.or_insert_with(|| Totals {
            first: value.to_owned(),
            last: String::new(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
            count: 0,
        });
        totals.last = value.to_owned();
        if let Some(number) = text::parse_number(value).filter(|number| !number.is_nan()) {
            totals.min = totals.min.min(number);
            totals.max = totals.max.max(number);
            totals.sum += number;
            totals.count += 1;
        }
    }

    fn items(&self) -> Items {
        let summed = |(key, totals): (&String, &Totals)| {
            let value = match self.rules.get(key) {
                Some(rules) if !rules.is_empty() => totals.ruled(rules),
                _ => totals.last.clone(),
            };
            (key.clone(), value)
        };
        self.values.iter().map(summed).collect()
    }
}

impl Totals {
    fn ruled(&self, rules: &[SummaryRule]) -> String {
        let value = |rule: &SummaryRule| match rule {
            SummaryRule::First => Some(self.first.clone()),
            SummaryRule::Last => Some(self.last.clone()),
            _ if self.count == 0 => None,
            SummaryRule::Min => Some(text::number(self.min)),
            SummaryRule::Max => Some(text::number(self.max)),
            SummaryRule::Mean => Some(text::number(self.sum / self.count as f64)),
        };
        let fields: Items = rules
            .iter()
            .filter_map(|rule| Some((rule.name().to_owned(), value(rule)?)))
            .collect();
        text::line(&fields)
    }
}

/// Unix time, seconds, to the microsecond: what a log keeps.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    (since.unwrap_or_default().as_secs_f64() * 1e6).round() / 1e6
}
