//! Records as lines of the server's files, each with its number.

use std::collections::VecDeque;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::artifact::Artifact;
use super::client::{Bucket, Stored};
use super::json;
use super::record::{Items, Record, Run};
use super::shared::Shared;
use crate::alert::Alert;

/// Of a row. The server takes no longer lines.
const MAX_LINE_BYTES: usize = (10 << 20) - (100 << 10);

/// What the server has been told, and what it has not yet.
pub(super) struct Stream {
    pub(super) bucket: Bucket,
    pub(super) id: String,
    start_time: f64,
    runtime: f64,
    pub(super) batch: Batch,
    /// Where the next lines go.
    history_line: u64,
    event_line: u64,
    output_line: u64,
    /// Lines of output that are there already.
    output_to_skip: u64,
    last_step: Option<u64>,
    last_event: Option<f64>,
    pub(super) summary: Items,
    /// Names of files that are still to be sent.
    pub(super) files: Vec<String>,
    /// Alerts that are still to be raised, each with its place among those of the log, counted from 1.
    pub(super) alerts: VecDeque<(u64, Alert)>,
    num_alerts: u64,
    /// The same of artifacts.
    pub(super) artifacts: VecDeque<(u64, Artifact)>,
    num_artifacts: u64,
    /// An alert or an artifact did not arrive.
    pub(super) is_lacking: bool,
    pub(super) last_request: Option<Instant>,
    pub(super) rows: u64,
    pub(super) rows_there: u64,
}

/// Lines for one request.
#[derive(Default)]
pub(super) struct Batch {
    history: Vec<String>,
    events: Vec<String>,
    output: Vec<String>,
    has_summary: bool,
    pub(super) uploaded: Vec<String>,
    pub(super) is_preempting: bool,
    pub(super) bytes: usize,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.uploaded.is_empty() && !self.is_preempting && !self.has_summary
    }
}

impl Stream {
    pub(super) fn new(bucket: Bucket, run: &Run, stored: &Stored, output_line: u64) -> Self {
        let summary = stored.summary.as_ref().and_then(Value::as_object);
        let summary = summary.into_iter().flatten();
        Self {
            bucket,
            id: run.id.clone(),
            start_time: run.start_time,
            runtime: run.runtime as f64,
            batch: Batch::default(),
            history_line: stored.history_lines,
            event_line: stored.event_lines,
            output_line: stored.output_lines.max(output_line),
            output_to_skip: stored.output_lines.saturating_sub(output_line),
            last_step: stored.last_step,
            last_event: stored.last_event,
            summary: summary
                .map(|(key, value)| (key.clone(), value.to_string()))
                .collect(),
            files: Vec::new(),
            alerts: VecDeque::new(),
            num_alerts: 0,
            artifacts: VecDeque::new(),
            num_artifacts: 0,
            is_lacking: false,
            last_request: None,
            rows: 0,
            rows_there: 0,
        }
    }

    /// Of the last row that the server has, or is to get.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    pub(super) fn take(&mut self, record: Record, shared: &Shared) {
        match record {
            Record::History { step, mut items } => {
                if self.last_step.is_some_and(|last| step <= last) {
                    self.rows_there += 1;
                    return;
                }
                items
                    .entry("_step".to_owned())
                    .or_insert_with(|| step.to_string());
                let line = json::line(&items);
                if line.len() > MAX_LINE_BYTES {
                    shared.warn(format!(
                        "warning: W&B takes no row of {} bytes: that of step {step} is left out",
                        line.len()
                    ));
                    return;
                }
                self.last_step = Some(step);
                self.rows += 1;
                self.batch.bytes += line.len();
                self.batch.history.push(line);
            }
            Record::Summary(items) => {
                self.summary.extend(items);
                self.batch.has_summary = true;
            }
            Record::Stats { time, items } => {
                if self.last_event.is_some_and(|last| time <= last) {
                    return;
                }
                let mut line = Items::from([
                    ("_wandb".to_owned(), "true".to_owned()),
                    ("_timestamp".to_owned(), json::number(time)),
                    (
                        "_runtime".to_owned(),
                        json::seconds(self.runtime + (time - self.start_time).max(0.0)),
                    ),
                ]);
                let named = items.into_iter();
                line.extend(named.map(|(key, value)| (format!("system.{key}"), value)));
                self.last_event = Some(time);
                let line = json::line(&line);
                self.batch.bytes += line.len();
                self.batch.events.push(line);
            }
            Record::Output {
                is_error,
                time,
                line,
            } => {
                if self.output_to_skip > 0 {
                    self.output_to_skip -= 1;
                    return;
                }
                let line = stamped(is_error, time, &line);
                self.batch.bytes += line.len();
                self.batch.output.push(line);
            }
            Record::Files(names) => self.files.extend(names),
            Record::Alert(alert) => {
                self.num_alerts += 1;
                self.alerts.push_back((self.num_alerts, alert));
            }
            Record::Artifact(artifact) => {
                self.num_artifacts += 1;
                self.artifacts.push_back((self.num_artifacts, *artifact));
            }
            Record::Preempting => self.batch.is_preempting = true,
            _ => {}
        }
    }

    /// What has been gathered, as the body of a request. Its lines have their numbers from here on.
    pub(super) fn body(&mut self, exit: Option<i64>) -> String {
        let batch = std::mem::take(&mut self.batch);
        let mut files = Map::new();
        let mut add = |name: &str, next: &mut u64, lines: Vec<String>| {
            if !lines.is_empty() {
                let offset = *next;
                *next += lines.len() as u64;
                files.insert(name.into(), json!({"offset": offset, "content": lines}));
            }
        };
        add("wandb-history.jsonl", &mut self.history_line, batch.history);
        add("wandb-events.jsonl", &mut self.event_line, batch.events);
        add("output.log", &mut self.output_line, batch.output);
        if batch.has_summary {
            add(
                "wandb-summary.json",
                &mut 0,
                vec![json::line(&self.summary)],
            );
        }
        let mut body = Map::new();
        if !files.is_empty() {
            body.insert("files".into(), files.into());
        }
        if !batch.uploaded.is_empty() {
            body.insert("uploaded".into(), batch.uploaded.into());
        }
        if batch.is_preempting {
            body.insert("preempting".into(), true.into());
        }
        if let Some(code) = exit {
            body.insert("complete".into(), true.into());
            body.insert("exitcode".into(), code.into());
        }
        Value::Object(body).to_string()
    }
}

/// A line of output as the site shows it: UTC, microseconds, no zone.
fn stamped(is_error: bool, time: f64, line: &str) -> String {
    let micros = (time * 1e6).round() as i64;
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
    let time = time.strftime("%Y-%m-%dT%H:%M:%S%.6f");
    let mark = if is_error { "ERROR " } else { "" };
    format!("{mark}{time} {line}")
}
