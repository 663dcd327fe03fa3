//! `tpu-train sync`: sends logs that were left, without Python.
//!
//! Nothing is sent twice, however often it is done and wherever it broke off: see [`super::upload`]. `wandb sync` doubles
//! the rows of a log that was sent in part.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::client::Client;
use super::config::ResumeRule;
use super::segments::{Segment, below};
use super::settings::{Environment, Server};
use super::shared::Shared;
use super::timing::Timing;
use super::upload::{Stop, Uploader};

/// How often there may be something to say.
const POLL: Duration = Duration::from_millis(100);

/// What became of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// What the run is known by.
    pub id: String,
    /// Where people look at it; none if there was nothing to do.
    pub url: Option<String>,
    /// Rows that were sent.
    pub rows: u64,
    /// Rows that were there already.
    pub rows_there: u64,
}

/// Why a run was not sent, or not all of it. It can be tried again.
#[derive(Debug)]
pub enum SyncError {
    /// There is no log where one was looked for.
    NoLog(PathBuf),
    /// A variable makes no sense, or there is no key.
    Settings(String),
    /// What the server says, or the disk.
    Stopped {
        /// What the run is known by.
        id: String,
        /// Why.
        why: String,
    },
}

impl std::error::Error for SyncError {}

impl fmt::Display for SyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLog(path) => write!(
                f,
                "{} holds no W&B log, which is called run-ID.wandb and lies in a folder wandb",
                path.display()
            ),
            Self::Settings(why) => f.write_str(why),
            Self::Stopped { id, why } => write!(f, "run {id}: {why}"),
        }
    }
}

/// Sends the logs in and below `paths`. Each run has an outcome; `say` gets what there is to say meanwhile.
pub fn sync(
    paths: &[PathBuf],
    environment: &Environment,
    timing: Timing,
    say: &mut dyn FnMut(String),
) -> Result<Vec<Result<Synced, SyncError>>, SyncError> {
    let server = Server::from_env(&|name| environment.get(name)).map_err(SyncError::Settings)?;
    if let Err(why) = &server.key {
        return Err(SyncError::Settings(why.clone()));
    }
    let mut logs = Vec::new();
    for path in paths {
        let found = below(path);
        if found.is_empty() {
            return Err(SyncError::NoLog(path.to_owned()));
        }
        logs.extend(found);
    }
    logs.sort_by(|a, b| a.run.start_time.total_cmp(&b.run.start_time));
    logs.dedup_by(|a, b| a.log == b.log);
    let mut outcomes = Vec::new();
    while let Some(first) = logs.first() {
        let id = first.run.id.clone();
        let (of_run, others): (Vec<_>, _) = logs.into_iter().partition(|log| log.run.id == id);
        logs = others;
        outcomes.push(sync_run(&id, &of_run, &server, timing, say));
    }
    Ok(outcomes)
}

fn sync_run(
    id: &str,
    logs: &[Segment],
    server: &Server,
    timing: Timing,
    say: &mut dyn FnMut(String),
) -> Result<Synced, SyncError> {
    if logs.iter().all(Segment::is_synced) {
        return Ok(Synced {
            id: id.to_owned(),
            url: None,
            rows: 0,
            rows_there: 0,
        });
    }
    let shared = Arc::new(Shared::default());
    let client = Client::new(server.clone(), timing);
    let mut uploader = Uploader::new(client, timing, shared.clone(), ResumeRule::Allow, false);
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| uploader.send_all(logs));
        while !sending.is_finished() {
            thread::sleep(POLL);
            shared.take_news().into_iter().for_each(&mut *say);
        }
        sending.join()
    });
    shared.take_news().into_iter().for_each(say);
    let stopped = |why: String| SyncError::Stopped {
        id: id.to_owned(),
        why,
    };
    match sent {
        Ok(Ok(sent)) => Ok(Synced {
            id: id.to_owned(),
            url: Some(sent.url),
            rows: sent.rows,
            rows_there: sent.rows_there,
        }),
        Ok(Err(stop)) => Err(stopped(stop.to_string())),
        Err(_) => Err(stopped("it panicked".to_owned())),
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status: 401, why } => {
                write!(f, "the server refuses the key: {why}")
            }
            Self::Refused { why, .. } => write!(f, "the server refuses it: {why}"),
            Self::Unreachable { why } => write!(f, "the server cannot be reached: {why}"),
            Self::Disk(error) => write!(f, "the log cannot be read: {error}"),
            Self::Claimed => f.write_str("another process is sending it"),
        }
    }
}
