//! Writes the log of this process: rows of `metrics.jsonl` and what else there is to tell, on a thread of its own.
//!
//! A row of W&B is a step: `_step` is the number of the step, and the training row and the validation of one step are one
//! row. So the last row waits until another step begins or the run ends. A validation that an earlier process has left
//! out, of a step that is logged already, goes with the next row. So do histograms and samples, which [`super::media`] reads.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::artifact::Artifact;
use super::config::{Mode, STEP_METRIC, WandbConfig};
use super::json as text;
use super::log::Writer;
use super::media::{self, Media, MediaFile, OfStep};
use super::record::{Items, Metric, Record, Run};
use super::segments::{self, Segment};
use super::settings::{ApiKey, Settings};
use super::shared::{Mark, Shared, exit_code, now};
use super::source::{git, metadata, without_password};
use super::summary::Summary;
use super::system::System;
use super::tail::Tail;
use super::timing::{Timing, seconds};
use crate::alert::Alert;
use crate::environment::environment;
use crate::record::NON_FINITE;
use crate::sink::{End, RunInfo};
use crate::transcript;

/// A longer patch says little.
const MAX_PATCH_BYTES: usize = 4 << 20;

/// Of a row, which has numbers besides.
const MAX_HISTOGRAM_BYTES: usize = 8 << 20;

/// A log that has been begun.
pub(super) struct Journal {
    log: Writer<File>,
    num_records: i64,
    id: String,
    entity: String,
    project: String,
    shared: Arc<Shared>,
    timing: Timing,
    record: Tail,
    media: Media,
    is_without_histograms: bool,
    /// What is sent beside the log.
    files: PathBuf,
    output: Option<Tail>,
    key: Option<ApiKey>,
    marks: Vec<Mark>,
    start_time: f64,
    runtime: f64,
    /// The step that is gathered.
    row: Option<Row>,
    /// Values of a step that is logged already.
    late: Items,
    /// The run goes on from there.
    restored_step: u64,
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
        media: Media,
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
        let key = settings.server.key.as_ref().ok();
        let key = key.map(|found| found.value.clone());
        let scrubbed = |text: String| match &key {
            Some(key) => key.scrubbed(&text),
            None => text,
        };
        let segment_run = Run {
            id: id.clone(),
            entity: settings.entity.clone().unwrap_or_default(),
            project: settings.project.value.clone(),
            config: config_items(&run.config, &scrubbed),
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
        let log = folder.join(format!("run-{id}.wandb"));
        let mut journal = Self {
            log: Writer::create(&log)?,
            num_records: 0,
            id,
            entity: segment_run.entity.clone(),
            project: segment_run.project.clone(),
            shared,
            timing: config.timing,
            record: Tail::new(run.dir.join("metrics.jsonl"), 0),
            media,
            is_without_histograms: false,
            files: folder.join("files"),
            output: transcript
                .filter(|_| config.console)
                .map(|(path, start)| Tail::new(path, start)),
            key,
            marks: Vec::new(),
            start_time,
            runtime,
            row: None,
            late: Items::new(),
            restored_step: run.step,
            last_step: extent.last_step,
            summary: Summary::new(&config.summary),
            system: settings
                .has_system_metrics
                .then(|| (System::new(run.dir.clone()), None)),
        };
        let metrics = metrics(config);
        let patch = git(&["diff", "HEAD"]).filter(|_| settings.has_patch);
        let files = journal.write_files(&environment, &segment_run, patch)?;
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
            if ending.is_some() {
                transcript::settle();
            }
            self.read_output()?;
            self.write_alerts()?;
            if ending.is_none() {
                self.write_artifacts()?;
            }
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
        self.take_images()?;
        self.finish_row()?;
        let left = self.take_media(u64::MAX)?;
        self.late.extend(left);
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
        // All else has been written when they are read.
        self.write_artifacts()?;
        if *end == End::Stopped {
            self.write(&Record::Preempting)?;
        }
        let code = exit_code(end);
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
            if is_live && step == self.restored_step {
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
        items.extend(self.take_media(row.step)?);
        items.extend(std::mem::take(&mut self.late));
        self.last_step = Some(row.step);
        let step = row.step;
        self.write(&Record::History { step, items })
    }

    /// What belongs to the row of `step`, the next one, and is no number.
    fn take_media(&mut self, step: u64) -> io::Result<Items> {
        let mut items = Items::new();
        for of_step in self.media.up_to(step)? {
            let is_late = self.last_step.is_some_and(|last| of_step.step <= last);
            // What earlier processes have made is logged, unless their last step was their end.
            if is_late && !(of_step.is_live && of_step.step == self.restored_step) {
                continue;
            }
            let mut found = self.histograms(&of_step);
            let scrubbed = |text: &str| self.scrubbed(text);
            if let Some((key, table)) = of_step.table(&self.files, &scrubbed)? {
                found.insert(key.to_owned(), self.write_media(key, table)?);
            }
            if is_late {
                self.late.extend(found);
            } else {
                items.extend(found);
            }
        }
        Ok(items)
    }

    /// The histograms of a step, if they fit into its row: the server takes no longer one, and its numbers shall arrive.
    fn histograms(&mut self, of_step: &OfStep) -> Items {
        let items = of_step.histograms();
        let bytes: usize = items
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if bytes <= MAX_HISTOGRAM_BYTES {
            return items;
        }
        if !std::mem::replace(&mut self.is_without_histograms, true) {
            self.shared.warn(format!(
                "warning: W&B: {} histograms are more than fits into a row; histograms.jsonl has them",
                items.len()
            ));
        }
        Items::new()
    }

    /// Those of the end, which go with the last row.
    fn take_images(&mut self) -> io::Result<()> {
        let at = self.row.as_ref().map(|row| row.step).or(self.last_step);
        for image in self.shared.take_images() {
            let Some(step) = at else {
                return Ok(());
            };
            let file = media::image(&self.files, step, &image)?;
            let value = self.write_media(&image.name, file)?;
            let row = self.row.as_mut().map(|row| &mut row.items);
            row.unwrap_or(&mut self.late).insert(image.name, value);
        }
        Ok(())
    }

    /// Has a file sent, and gives the value that names it.
    fn write_media(&mut self, key: &str, file: MediaFile) -> io::Result<String> {
        self.write(&Record::Files(vec![file.name]))?;
        self.summary.take(key, &file.value);
        Ok(file.value)
    }

    fn write_alerts(&mut self) -> io::Result<()> {
        for alert in self.shared.take_alerts() {
            let text = self.scrubbed(&alert.text);
            self.write(&Record::Alert(Alert { text, ..alert }))?;
        }
        Ok(())
    }

    /// Those checkpoints that are still there.
    fn write_artifacts(&mut self) -> io::Result<()> {
        for (step, dir) in self.shared.take_checkpoints() {
            let shared = self.shared.clone();
            let is_over = || shared.is_abandoned();
            match Artifact::of_checkpoint(&self.id, step, &dir, &is_over) {
                Ok(artifact) => self.write(&Record::Artifact(Box::new(Artifact {
                    entity: self.entity.clone(),
                    project: self.project.clone(),
                    ..artifact
                })))?,
                Err(error) => self.shared.inform(format!(
                    "W&B: not told of {}, which was not kept for long enough to be read: {error}",
                    dir.display()
                )),
            }
        }
        Ok(())
    }

    /// A text without the key.
    fn scrubbed(&self, text: &str) -> String {
        match &self.key {
            Some(key) => key.scrubbed(text),
            None => text.to_owned(),
        }
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
        for (line, end) in lines {
            let line = self.scrubbed(&line);
            self.write(&Record::Output {
                // Of the end of the line, which is one byte.
                is_error: transcript::is_error(end - 1),
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
        environment: &Value,
        run: &Run,
        patch: Option<String>,
    ) -> io::Result<Vec<String>> {
        let mut names = vec!["wandb-metadata.json".to_owned()];
        let metadata = self.scrubbed(&metadata(environment, run).to_string());
        fs::write(self.files.join(&names[0]), metadata)?;
        if let Some(patch) = patch.filter(|text| !text.is_empty() && text.len() < MAX_PATCH_BYTES) {
            names.push("diff.patch".to_owned());
            let patch = self.scrubbed(&format!("{patch}\n"));
            fs::write(self.files.join("diff.patch"), patch)?;
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

/// Each key of the config as JSON, without what shall not be in it.
fn config_items(config: &Value, scrubbed: &dyn Fn(String) -> String) -> Items {
    let fields = config.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), scrubbed(value.to_string())))
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
