//! `tpu-train sync`: sends logs that were left, without Python.
//!
//! Nothing is sent twice, however often it is done and wherever it broke off: see [`super::upload`]. `wandb sync` doubles
//! the rows of a log that was sent in part.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::client::Client;
use super::segments::{Segment, meant_by};
use super::settings::{Server, environment};
use super::shared::Shared;
use super::upload::{Stop, Uploader};
use super::{ResumeRule, Timing};

/// How logs are sent.
#[derive(Debug, Clone, Default)]
pub struct SyncOptions {
    /// Also those that were sent as a whole before: what the server has of them is not sent again.
    pub again: bool,
    /// How long things take.
    pub timing: Timing,
}

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
                "{} holds no W&B log: neither run-ID.wandb, nor folders run-... or offline-run-..., nor a folder wandb",
                path.display()
            ),
            Self::Settings(why) => f.write_str(why),
            Self::Stopped { id, why } => write!(f, "run {id}: {why}"),
        }
    }
}

/// Sends what `path` means: a log, its folder, a folder of such, or one with a folder `wandb`. Each run has an outcome;
/// `say` gets what there is to say meanwhile.
pub fn sync(
    path: &Path,
    options: &SyncOptions,
    say: &mut dyn FnMut(String),
) -> Result<Vec<Result<Synced, SyncError>>, SyncError> {
    let server = Server::from_env(&environment).map_err(SyncError::Settings)?;
    if let Err(why) = &server.key {
        return Err(SyncError::Settings(why.clone()));
    }
    let mut logs = meant_by(path);
    if logs.is_empty() {
        return Err(SyncError::NoLog(path.to_owned()));
    }
    let mut outcomes = Vec::new();
    while let Some(first) = logs.first() {
        let id = first.run.id.clone();
        let (of_run, others): (Vec<_>, _) = logs.into_iter().partition(|log| log.run.id == id);
        logs = others;
        outcomes.push(sync_run(&id, of_run, &server, options, say));
    }
    Ok(outcomes)
}

fn sync_run(
    id: &str,
    logs: Vec<Segment>,
    server: &Server,
    options: &SyncOptions,
    say: &mut dyn FnMut(String),
) -> Result<Synced, SyncError> {
    if !options.again && logs.iter().all(Segment::is_synced) {
        return Ok(Synced {
            id: id.to_owned(),
            url: None,
            rows: 0,
            rows_there: 0,
        });
    }
    let shared = Arc::new(Shared::default());
    shared.join_in();
    let client = Client::new(server.clone(), options.timing);
    let mut uploader = Uploader::new(
        client,
        options.timing,
        shared.clone(),
        ResumeRule::Allow,
        false,
    );
    uploader.again = options.again;
    let sent = uploader.send_all(&logs);
    shared.take_news().into_iter().for_each(say);
    match sent {
        Ok(sent) => Ok(Synced {
            id: id.to_owned(),
            url: Some(sent.url),
            rows: sent.rows,
            rows_there: sent.rows_there,
        }),
        Err(stop) => Err(SyncError::Stopped {
            id: id.to_owned(),
            why: stop.to_string(),
        }),
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
