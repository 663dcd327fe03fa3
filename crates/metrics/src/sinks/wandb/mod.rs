//! Weights & Biases, spoken without its client: `logging=wandb`, and by itself where a key is found.
//!
//! # How it goes
//!
//! ```text
//! training --position--> journal (thread) --> run-ID.wandb --> uploader (thread) --> server
//!                         metrics.jsonl                    \-> `tpu-train sync`, `wandb sync`
//!                         console.log, /proc, git
//! ```
//!
//! The sink itself stores one number and a time. The *journal* reads the run's record up to there and writes a log in
//! W&B's own format, always, also online. The *uploader* reads that log and speaks to the server. So nothing that a network
//! does is felt by training, memory is bounded by nothing but the disk, and what was not sent can be sent later: what
//! uploads a log that was left is the same code that uploads one that is being written.
//!
//! # The protocol
//!
//! Measured from the reference client, Python's wandb 0.31.0. [`client`] has the requests, [`upload`] what goes when and
//! how it arrives once, [`record`] and [`log`](mod@log) the format of logs, [`settings`] the variables, [`segments`] the
//! folders. In short:
//!
//! - `RunResumeStatus`, `UpsertBucket`, then file_stream requests; at the end `UpsertBucket`, files, and a file_stream
//!   request with `complete` and `exitcode`.
//! - Files of a run grow by *lines*. A line is given its number once, and a request is repeated as it is.
//! - `_step` of a row must grow, `_timestamp` is in seconds, and NaN is the bare word.
//! - The config wraps each value as `{"value": ...}` and has `_wandb.t`, or the run counts as never begun.
//! - The key goes to the server alone, never to the addresses of uploads and after no redirect.

mod client;
mod journal;
mod json;
mod log;
mod proto;
mod record;
mod segments;
mod settings;
mod shared;
mod sync;
mod system;
mod timing;
mod upload;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::record::Record;
use crate::sink::{End, RunInfo, Sink, SinkResult};
use crate::transcript;
use client::Client;
use journal::Journal;
use segments::Segment;
use settings::{OfRun, Settings};
use shared::{Mark, Shared};
use upload::{Stop, Uploader, sync_command};

pub use settings::Environment;
pub use sync::{SyncError, Synced, sync};
pub use timing::Timing;

/// `kwargs` of `wandb.Wandb`. What is null is for the environment (WANDB_PROJECT and so on) to say.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WandbConfig {
    /// Whether rows are sent: `online`, `offline` (a log that `tpu-train sync` sends later) or `disabled`.
    pub mode: Option<Mode>,
    /// The project; null: WANDB_PROJECT, else `project` of the config.
    pub project: Option<String>,
    /// The user or team; null: that of the key.
    pub entity: Option<String>,
    /// What the run is called; null: `name` of the config, else the server finds one.
    pub name: Option<String>,
    /// What the run is known by; null: that of the run folder, the same each time the run goes on.
    pub id: Option<String>,
    /// What belongs together, such as the jobs of a sweep.
    pub group: Option<String>,
    /// Which part of a group this is.
    pub job_type: Option<String>,
    /// Words to find the run by.
    pub tags: Option<Vec<String>>,
    /// A longer description; null: `notes` of the config.
    pub notes: Option<String>,
    /// Where the server answers; null: WANDB_BASE_URL, else W&B's own.
    pub base_url: Option<String>,
    /// The folder in which a folder `wandb` is made; null: WANDB_DIR, else the run folder.
    pub dir: Option<PathBuf>,
    /// Whether the server must, or must not, know the run already.
    pub resume: Option<ResumeRule>,
    /// What the curves are drawn over: `trainer/step`, `tokens`, or another metric.
    pub x_axis: String,
    /// What the summary says of a metric instead of its last value.
    pub summary: BTreeMap<String, Vec<SummaryRule>>,
    /// Sends what the run prints.
    pub console: bool,
    /// Sends what the processor, memory, disk and network do.
    pub system_metrics: bool,
    /// Sends what differs from the git commit, as a file `diff.patch`.
    pub save_patch: bool,
    /// For tests: how long things take.
    #[schemars(skip)]
    pub timing: Timing,
}

impl Default for WandbConfig {
    fn default() -> Self {
        Self {
            mode: None,
            project: None,
            entity: None,
            name: None,
            id: None,
            group: None,
            job_type: None,
            tags: None,
            notes: None,
            base_url: None,
            dir: None,
            resume: None,
            x_axis: journal::STEP_METRIC.to_owned(),
            summary: BTreeMap::from([(
                "val_loss".to_owned(),
                vec![SummaryRule::Min, SummaryRule::Last],
            )]),
            console: true,
            system_metrics: true,
            save_patch: true,
            timing: Timing::default(),
        }
    }
}

/// Whether rows are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// As they come.
    #[serde(alias = "run")]
    Online,
    /// Not now: a log is written.
    #[serde(alias = "dryrun")]
    Offline,
    /// Nothing is done at all.
    Disabled,
}

impl Mode {
    fn named(text: &str) -> Option<Self> {
        match text.trim().to_lowercase().as_str() {
            "online" | "run" => Some(Self::Online),
            "offline" | "dryrun" => Some(Self::Offline),
            "disabled" => Some(Self::Disabled),
            _ => None,
        }
    }
}

/// What is done about a run that the server knows already, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResumeRule {
    /// It goes on, or is made.
    #[serde(alias = "auto")]
    Allow,
    /// It must be there.
    Must,
    /// It must not be there.
    Never,
}

impl ResumeRule {
    fn named(text: &str) -> Option<Self> {
        match text.trim().to_lowercase().as_str() {
            "allow" | "auto" => Some(Self::Allow),
            "must" => Some(Self::Must),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// What a summary says of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SummaryRule {
    /// Its least value.
    Min,
    /// Its greatest value.
    Max,
    /// The mean of its values.
    Mean,
    /// Its first value.
    First,
    /// Its last value.
    Last,
}

impl SummaryRule {
    fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// Whether the environment lets a user expect their runs at W&B: there is a key, and nothing says no.
pub fn is_expected(environment: &Environment) -> bool {
    settings::is_expected(&|name| environment.get(name))
}

/// `wandb.Wandb`.
pub struct Wandb {
    config: WandbConfig,
    environment: Environment,
    /// Nobody has asked for it by name.
    is_by_itself: bool,
    running: Option<Running>,
}

/// The two threads.
struct Running {
    shared: Arc<Shared>,
    timing: Timing,
    /// Disconnected once both have ended.
    done: Receiver<()>,
}

impl Wandb {
    /// A sink that does as it is told.
    pub fn new(config: WandbConfig) -> Self {
        Self {
            config,
            environment: Environment::of_process(),
            is_by_itself: false,
            running: None,
        }
    }

    /// The sink for a user who has a key and has said nothing: it says how it is turned off.
    #[must_use]
    pub fn by_itself(self) -> Self {
        Self {
            is_by_itself: true,
            ..self
        }
    }

    /// The same with other variables than those of this process.
    #[must_use]
    pub fn in_environment(self, environment: Environment) -> Self {
        Self {
            environment,
            ..self
        }
    }

    fn introduce(&self, settings: &Settings, shared: &Shared) {
        let project = &settings.project;
        let project = format!("project {} ({})", project.value, project.from);
        let off = if self.is_by_itself {
            "; WANDB_MODE=disabled turns it off"
        } else {
            ""
        };
        match (&settings.mode.value, &settings.server.key) {
            (Mode::Offline, _) => {
                shared.inform(format!(
                    "W&B: offline ({}), {project}{off}",
                    settings.mode.from
                ));
            }
            (_, Ok(key)) => {
                let url = &settings.server.base_url;
                shared.inform(format!("W&B: {project} at {url}, key of {}{off}", key.from));
            }
            (_, Err(why)) => {
                shared.warn(format!(
                    "warning: W&B: {why}; the run is logged offline, https://wandb.ai/authorize shows a key"
                ));
            }
        }
    }
}

impl Sink for Wandb {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        let of_run = OfRun {
            project: run.project.clone(),
            name: run.name.clone(),
            notes: run.notes.clone(),
        };
        let var = |name: &str| self.environment.get(name);
        let settings = Settings::find(&self.config, &of_run, &var)?;
        if settings.mode.value == Mode::Disabled {
            return Ok(());
        }
        let shared = Arc::new(Shared::default());
        shared
            .is_silent
            .store(settings.is_silent, Ordering::Relaxed);
        self.introduce(&settings, &shared);
        let length = std::fs::metadata(run.dir.join("metrics.jsonl")).map_or(0, |it| it.len());
        shared.begin_at(length);
        let (alive, done) = channel();
        self.running = Some(Running {
            shared: shared.clone(),
            timing: self.config.timing,
            done,
        });
        let work = Work {
            run: run.clone(),
            config: self.config.clone(),
            settings,
            shared,
            alive,
        };
        let thread = thread::Builder::new().name("wandb log".into());
        thread.spawn(move || work.keep_log())?;
        Ok(())
    }

    /// Takes no longer than to store the position.
    fn record(&mut self, _record: &Record, position: u64) -> SinkResult {
        if let Some(running) = &self.running {
            let time = journal::now();
            running.shared.advance(Mark { position, time });
        }
        Ok(())
    }

    fn news(&mut self) -> Vec<String> {
        match &self.running {
            Some(running) => running.shared.take_news(),
            None => Vec::new(),
        }
    }

    /// Waits for what is left to be sent, but not for long: see [`Timing::flush`].
    fn finish(&mut self, end: &End) -> SinkResult {
        if let Some(running) = &self.running {
            running.finish(end);
        }
        Ok(())
    }
}

impl Running {
    fn finish(&self, end: &End) {
        /// Nobody wonders about less.
        const UNREMARKED: Duration = Duration::from_secs(2);
        let started = Instant::now();
        self.shared.end(end.clone());
        let mut is_said = false;
        loop {
            let from = started.max(self.shared.obliged_until().unwrap_or(started));
            let until = from + timing::seconds(self.timing.flush);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.shared.abandon();
                // They say what is left, unless they hang.
                let _ = self.done.recv_timeout(Duration::from_millis(200));
                return;
            }
            match self.done.recv_timeout(left.min(UNREMARKED)) {
                Err(RecvTimeoutError::Disconnected) => return,
                _ if is_said => {}
                _ => {
                    is_said = true;
                    let text = format!(
                        "W&B: sending what is left, for at most {} s more\n",
                        left.as_secs()
                    );
                    let _ = io::stderr().write_all(text.as_bytes());
                    transcript::keep(&text);
                }
            }
        }
    }
}

/// What the threads are given.
struct Work {
    run: RunInfo,
    config: WandbConfig,
    settings: Settings,
    shared: Arc<Shared>,
    /// Dropped at the end.
    alive: Sender<()>,
}

impl Work {
    fn keep_log(self) {
        self.shared.join_in();
        if let Err(error) = self.try_to_keep_log() {
            self.shared.warn(format!(
                "warning: W&B: its log cannot be written: {error}; it gets nothing more of this run, metrics.jsonl has it all"
            ));
        }
        self.shared.close_log();
    }

    fn try_to_keep_log(&self) -> io::Result<()> {
        let transcript = transcript::place();
        let begun = Journal::begin(
            &self.run,
            &self.config,
            &self.settings,
            self.shared.clone(),
            transcript,
        );
        let (mut journal, logs) = begun?;
        let is_online =
            self.settings.mode.value == Mode::Online && self.settings.server.key.is_ok();
        if is_online {
            self.start_upload(logs)?;
        } else if let Some(log) = logs.last() {
            let folder = log.folder();
            self.shared.inform(format!(
                "W&B: logged to {}; `{}` sends it",
                folder.display(),
                sync_command(folder)
            ));
        }
        journal.keep()
    }

    fn start_upload(&self, logs: Vec<Segment>) -> io::Result<()> {
        let client = Client::new(self.settings.server.clone(), self.config.timing);
        let mut uploader = Uploader::new(
            client,
            self.config.timing,
            self.shared.clone(),
            self.settings.resume,
            true,
        );
        let (shared, alive) = (self.shared.clone(), self.alive.clone());
        let thread = thread::Builder::new().name("wandb upload".into());
        thread.spawn(move || {
            let _alive: Sender<()> = alive;
            shared.join_in();
            let folder = logs.last().map(Segment::folder).unwrap_or("".as_ref());
            let sync = sync_command(tt_disk::parent(folder));
            let base_url = uploader.client.server.base_url.clone();
            match uploader.send_all(&logs) {
                Ok(_) => {}
                Err(Stop::Unreachable { why }) => shared.warn(format!(
                    "warning: W&B: not all of the run could be sent to {base_url}: {why}; `{sync}` sends the rest"
                )),
                Err(stop) => shared.warn(format!(
                    "warning: W&B: {stop}; the run goes on and is logged to {}, `{sync}` sends it once that is mended",
                    folder.display()
                )),
            }
        })?;
        Ok(())
    }
}
