//! The sink `wandb.Wandb` against a server that behaves like W&B's, and misbehaves as it is told to.
//!
//! The server is `tests/wandb/mock_server.py`, which the reference client runs against unmodified.

mod arrival;
mod key;
mod media;
mod offline;
mod resume;
#[path = "../../../../tests/wandb/server.rs"]
mod server;
mod speed;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tt_metrics::wandb::{Environment, Timing, Wandb, WandbConfig};
use tt_metrics::{
    End, Jsonl, Metrics, Record, RunInfo, Sink, SinkResult, StepRecord, Truncation, ValRecord,
};

pub const KEY: &str = "5ec2e70123456789012345678901234567890123";
pub const RUN_ID: &str = "k3v8x0qa";

/// Everything a hundred times as fast.
pub fn timing() -> Timing {
    Timing {
        poll: 0.01,
        stream: 0.1,
        heartbeat: 0.4,
        system: 0.2,
        first_delay: 0.05,
        max_delay: 0.4,
        offline_after: 0.3,
        flush: 20.0,
        sync_patience: 1.0,
        ..Timing::default()
    }
}

/// A run in a folder, as the training loop would have it.
pub struct Run {
    pub dir: tempfile::TempDir,
    pub config: WandbConfig,
    pub vars: Vec<(String, String)>,
    messages: Messages,
}

impl Run {
    pub fn new(base_url: &str) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            config: WandbConfig {
                timing: timing(),
                save_patch: false,
                ..WandbConfig::default()
            },
            vars: vec![
                ("WANDB_BASE_URL".to_owned(), base_url.to_owned()),
                ("WANDB_API_KEY".to_owned(), KEY.to_owned()),
            ],
            messages: Messages::default(),
        }
    }

    #[must_use]
    pub fn with_var(mut self, name: &str, value: &str) -> Self {
        self.vars.retain(|(other, _)| other != name);
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn environment(&self) -> Environment {
        Environment::of(self.vars.iter().map(|(name, value)| (&**name, &**value)))
    }

    /// Begins after `step`, as from a checkpoint.
    pub fn start(&self, step: u64) -> Metrics {
        let open = |name: &str| {
            let path = self.path().join(name);
            match step {
                0 => (Jsonl::create(&path).unwrap(), Truncation::default()),
                step => Jsonl::resume(&path, step).unwrap(),
            }
        };
        let (jsonl, truncation) = open("metrics.jsonl");
        let wandb = Wandb::new(self.config.clone()).in_environment(self.environment());
        let mut metrics = Metrics::new(jsonl)
            .keeping_samples(open("samples.jsonl").0)
            .keeping_histograms(open("histograms.jsonl").0)
            .with(self.messages.clone())
            .with(wandb);
        let info = RunInfo {
            id: RUN_ID.to_owned(),
            project: Some("tpu-train".to_owned()),
            dir: self.path().to_owned(),
            config: json!({"lr": 0.001, "model": {"layers": 4}}),
            step,
            ..RunInfo::default()
        };
        metrics.start(&info, truncation);
        metrics
    }

    /// Logs steps `from..=to` with a little time between them, and ends so.
    pub fn complete(&self, from: u64, to: u64, end: &End) {
        let mut metrics = self.start(from - 1);
        for step in from..=to {
            metrics.log(row(step)).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        metrics.finish(end).unwrap();
    }

    pub fn messages(&self) -> Vec<String> {
        self.messages.0.lock().unwrap().clone()
    }

    /// The logs that were written.
    pub fn logs(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.path().join("wandb")).unwrap().flatten();
        let name = format!("run-{RUN_ID}.wandb");
        let mut logs: Vec<_> = folders.map(|entry| entry.path().join(&name)).collect();
        logs.sort();
        logs
    }
}

pub fn row(step: u64) -> StepRecord {
    StepRecord {
        step,
        loss: 3.0 - step as f32 / 100.0,
        tokens: 128 * step,
        ..StepRecord::default()
    }
}

pub fn val(step: u64, val_loss: f32) -> ValRecord {
    ValRecord {
        step,
        val_loss,
        ..ValRecord::default()
    }
}

/// What a user would see.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<String>>>);

impl Sink for Messages {
    fn record(&mut self, _record: &Record, _position: u64) -> SinkResult {
        Ok(())
    }

    fn message(&mut self, text: &str) -> SinkResult {
        self.0.lock().unwrap().push(text.to_owned());
        Ok(())
    }
}

/// The server has rows `1..=num_steps` of the run, once each and in order, with the losses of the record.
#[track_caller]
pub fn assert_rows(run: &Value, num_steps: u64) {
    let history: Vec<Value> = server::lines(run, "history");
    let steps: Vec<_> = history.iter().map(|line| line["_step"].as_u64()).collect();
    let expected: Vec<_> = (1..=num_steps).map(Some).collect();
    assert_eq!(steps, expected);
    for line in &history {
        let step = line["_step"].as_u64().unwrap();
        let loss = line["loss"].to_string().parse::<f32>().unwrap();
        assert_eq!(loss, row(step).loss, "{line}");
        assert_eq!(line["trainer/step"], step);
    }
    assert_eq!(run["anomalies"], json!([]));
}
