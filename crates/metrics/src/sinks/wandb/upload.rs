//! Sends logs to the server: one that is being written as well as those that were left.
//!
//! # Once and only once
//!
//! A file of the server grows by lines, and a request says at which line its own begin; lines already there are
//! overwritten. So each line is given its number once, and a request is repeated as it is until it is answered. What an
//! earlier process has sent is asked of the server: rows up to the `_step` of its last one, system metrics up to the time
//! of its last line, and as many lines of output as it has. Alerts that were raised are counted beside the log. One
//! request is under way at a time.
//!
//! # When
//!
//! The first request at once, then one in 15 s with all that has come, an empty one after 30 s of silence. On failures the
//! waits are 2 s, 4 s, ... 60 s, with up to a quarter more by chance, unless the server says how long. 401, 403, 404 and
//! their like are final: the log has everything, and `tpu-train sync` sends it.

use std::fs;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chance::chance;
use super::client::{Bucket, Client, RunFile, Stored, Trouble, Upsert};
use super::config::ResumeRule;
use super::json;
use super::log::Reader;
use super::record::{Metric, Record, Run};
use super::segments::{Claim, Segment, each};
use super::server_config::{config_json, config_yaml};
use super::shared::{Shared, exit_code};
use super::stream::Stream;
use super::timing::{Timing, seconds};

/// More is sent at once, in a request of its own.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Why nothing more is sent.
#[derive(Debug)]
pub(super) enum Stop {
    /// The server does not want it.
    Refused { status: u16, why: String },
    /// It cannot be reached.
    Unreachable { why: String },
    /// The log cannot be read.
    Disk(io::Error),
    /// Another process sends the log.
    Claimed,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// What there was to send.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) rows: u64,
    /// Known to the server before.
    pub(super) rows_there: u64,
    pub(super) url: String,
}

pub(super) struct Uploader {
    pub(super) client: Client,
    pub(super) timing: Timing,
    pub(super) shared: Arc<Shared>,
    pub(super) resume: ResumeRule,
    /// Whether the last log is still being written.
    pub(super) is_live: bool,
    /// Since when no request has been answered.
    failing_since: Option<Instant>,
    is_said_to_fail: bool,
    has_been_answered: bool,
    is_stop_said: bool,
    /// Where the log of a run is, for messages.
    place: String,
}

impl Uploader {
    pub(super) fn new(
        client: Client,
        timing: Timing,
        shared: Arc<Shared>,
        resume: ResumeRule,
        is_live: bool,
    ) -> Self {
        Self {
            client,
            timing,
            shared,
            resume,
            is_live,
            failing_since: None,
            is_said_to_fail: false,
            has_been_answered: false,
            is_stop_said: false,
            place: String::new(),
        }
    }

    /// Sends the logs of one run, oldest first.
    pub(super) fn send_all(&mut self, segments: &[Segment]) -> Result<Sent, Stop> {
        let mut sent = Sent::default();
        for (index, segment) in segments.iter().enumerate() {
            let is_last = index + 1 == segments.len();
            if segment.is_synced() && !(is_last && self.is_live) {
                continue;
            }
            self.place = segment.folder().display().to_string();
            let part = self.send(segment, &segments[..=index], is_last)?;
            sent.rows += part.rows;
            sent.rows_there += part.rows_there;
            sent.url = part.url;
        }
        Ok(sent)
    }

    fn send(&mut self, segment: &Segment, logs: &[Segment], is_last: bool) -> Result<Sent, Stop> {
        let mut claim = Claim::new(segment)?.ok_or(Stop::Claimed)?;
        let is_live = self.is_live && is_last;
        let mut source = Source {
            reader: Reader::open(&segment.log)?,
            peeked: None,
        };
        let head = self.head(&mut source, is_live)?;
        let run = &segment.run;
        let stored = self.stored(run)?;
        let is_first = logs.len() == 1 && run.starting_step == 0;
        let is_known = claim.output_line().is_some();
        self.check_resume(&stored, is_first && !is_known)?;
        let config = config_json(run, &head.metrics);
        let bucket = self.upsert(run, &stored, &config)?;
        let url = self.client.run_url(&bucket, &run.id);
        if is_live {
            let name = &bucket.display_name;
            self.shared.inform(format!("W&B: {name} at {url}"));
        }
        let stored = stored.unwrap_or_default();
        if let (Some(step), true, true) = (stored.last_step, is_live && is_first, !is_known) {
            self.shared.warn(format!(
                "warning: W&B has rows of run {} up to step {step} already, and takes no second row of a step: \
                 those of this run are sent from the next one on; another id keeps them apart",
                run.id
            ));
        }
        let output_line = match claim.output_line() {
            Some(line) => line,
            None => {
                claim.set_output_line(stored.output_lines)?;
                stored.output_lines
            }
        };
        let mut stream = Stream::new(bucket, run, &stored, output_line);
        stream.files = head.files;
        let exit = self.follow(&mut source, &mut stream, &mut claim, segment, is_live)?;
        // Without an end: killed.
        let exit = exit.or(Some(1));
        // The run is not over if there is another log of it.
        let exit = exit.filter(|_| is_last);
        if self.conclude(&mut stream, &mut claim, segment, logs, &config, exit)? {
            segment.mark_synced()?;
        }
        Ok(Sent {
            rows: stream.rows,
            rows_there: stream.rows_there,
            url,
        })
    }

    /// What comes before the first row.
    fn head(&self, source: &mut Source, is_live: bool) -> Result<Head, Stop> {
        let mut head = Head::default();
        loop {
            match source.next()? {
                Some(Record::Metric(metric)) => head.metrics.push(metric),
                Some(Record::Files(names)) => head.files.extend(names),
                Some(Record::Header | Record::Run(_) | Record::Other) => {}
                Some(record) => {
                    source.peeked = Some(record);
                    return Ok(head);
                }
                None if !is_live || self.shared.is_log_closed() => return Ok(head),
                None => self.rest(seconds(self.timing.poll))?,
            }
        }
    }

    fn stored(&mut self, run: &Run) -> Result<Option<Stored>, Stop> {
        let entity = Some(run.entity.as_str()).filter(|entity| !entity.is_empty());
        let asked = self.persist(|client| client.resume_status(entity, &run.project, &run.id));
        let stored = match asked {
            // A project that is not there yet.
            Err(Stop::Refused { status: 404, .. }) => return Ok(None),
            asked => asked?,
        };
        // Rows would be doubled.
        if let Some(it) = stored.as_ref().filter(|it| it.history_lines > 0)
            && it.last_step.is_none()
        {
            let lines = it.history_lines;
            return Err(Stop::Refused {
                status: 200,
                why: format!(
                    "it has {lines} rows of the run and does not tell the step of the last one"
                ),
            });
        }
        Ok(stored)
    }

    fn check_resume(&self, stored: &Option<Stored>, is_new: bool) -> Result<(), Stop> {
        let why = match (self.resume, stored) {
            (ResumeRule::Must, None) => "there is no such run, and WANDB_RESUME=must wants one",
            (ResumeRule::Never, Some(_)) if is_new => {
                "there is such a run, and WANDB_RESUME=never wants none"
            }
            _ => return Ok(()),
        };
        let (status, why) = (409, why.to_owned());
        Err(Stop::Refused { status, why })
    }

    fn upsert(&mut self, run: &Run, stored: &Option<Stored>, config: &str) -> Result<Bucket, Stop> {
        let storage_id = stored.as_ref().and_then(|it| it.storage_id.clone());
        let upsert = Upsert {
            storage_id: storage_id.as_deref(),
            run,
            entity: Some(run.entity.as_str()).filter(|entity| !entity.is_empty()),
            project: &run.project,
            config,
            program: Some("tpu-train"),
        };
        self.persist(|client| client.upsert(&upsert))
    }

    /// Sends what comes, until the log ends; gives the exit code that it ends with.
    fn follow(
        &mut self,
        source: &mut Source,
        stream: &mut Stream,
        claim: &mut Claim,
        segment: &Segment,
        is_live: bool,
    ) -> Result<Option<i64>, Stop> {
        let (pace, heartbeat) = (self.timing.stream, self.timing.heartbeat);
        loop {
            let is_closed = !is_live || self.shared.is_log_closed();
            let mut is_at_end = false;
            while stream.batch.bytes < MAX_REQUEST_BYTES {
                match source.next()? {
                    Some(Record::Exit { code, .. }) => return Ok(Some(code)),
                    Some(record) => stream.take(record, &self.shared),
                    None => {
                        is_at_end = true;
                        break;
                    }
                }
            }
            if is_at_end && is_closed {
                match self.shared.ending() {
                    _ if !is_live => return Ok(None),
                    Some(end) => return Ok(Some(exit_code(end))),
                    // The log cannot be written, but the run is at work.
                    None => {}
                }
            }
            let quiet = stream.last_request.map(|at| at.elapsed());
            let is_due = |after: f64| quiet.is_none_or(|quiet| quiet >= seconds(after));
            if !is_at_end
                || (!stream.batch.is_empty() && is_due(pace))
                || stream.batch.is_preempting
                || is_due(heartbeat)
            {
                self.request(stream, None)?;
                if is_live && !self.is_ending() {
                    self.try_files(stream, segment);
                }
            } else if is_live && !stream.alerts.is_empty() {
                self.raise_alerts(stream, claim)?;
            } else if is_live && !stream.artifacts.is_empty() && !self.is_ending() {
                self.log_artifacts(stream, claim)?;
            } else if is_live {
                self.rest(seconds(self.timing.poll))?;
            }
        }
    }

    /// The end of a log: the rest of the lines, the last update, the files and, if the run is over, its exit code. None of
    /// them is left out because another has failed. Gives whether all has arrived.
    fn conclude(
        &mut self,
        stream: &mut Stream,
        claim: &mut Claim,
        segment: &Segment,
        logs: &[Segment],
        config: &str,
        exit: Option<i64>,
    ) -> Result<bool, Stop> {
        // The rows come before everything else, if time is short.
        if !stream.batch.is_empty() {
            self.request(stream, None)?;
        }
        self.raise_alerts(stream, claim)?;
        self.log_artifacts(stream, claim)?;
        let mut files = read_files(segment, std::mem::take(&mut stream.files));
        if exit.is_some() {
            let updated = self.upsert(&segment.run, &None, config);
            self.forgive("the last config", updated.map(drop))?;
            let ends = [
                ("config.yaml", config_yaml(config)),
                ("wandb-summary.json", json::line(&stream.summary)),
                ("output.log", output(logs)?),
            ];
            files.extend(ends.map(|(name, content)| RunFile {
                name: name.to_owned(),
                content: content.into_bytes(),
            }));
        }
        let put = self.put(stream, files);
        let has_files = self.forgive("files", put)?;
        if exit.is_some() || !stream.batch.is_empty() {
            self.request(stream, exit)?;
        }
        Ok(has_files && !stream.is_lacking)
    }

    /// What is not worth the rest of the run; gives whether it was done.
    fn forgive(&self, what: &str, done: Result<(), Stop>) -> Result<bool, Stop> {
        let why = match done {
            Ok(()) => return Ok(true),
            Err(Stop::Refused { why, .. }) => why,
            Err(Stop::Unreachable { why }) if !self.shared.is_abandoned() => why,
            Err(stop) => return Err(stop),
        };
        let text = format!("warning: W&B: {what} not sent: {why}");
        self.shared.warn(text);
        Ok(false)
    }

    fn put(&mut self, stream: &mut Stream, mut files: Vec<RunFile>) -> Result<(), Stop> {
        if files.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        // Storage is another host, which may be closed to us. The end must be told all the same.
        let patience = seconds(self.timing.flush / 2.0);
        self.persist_for(Some(patience), |client| {
            put_once(client, stream, &mut files, &shared)
        })
    }

    /// One attempt at what is left of the files: the rows come first.
    fn try_files(&mut self, stream: &mut Stream, segment: &Segment) {
        let mut files = read_files(segment, std::mem::take(&mut stream.files));
        if files.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        match put_once(&self.client, stream, &mut files, &shared) {
            Err(Trouble::Refused { why, .. }) => {
                let text = format!("warning: W&B: files were not sent: {why}");
                self.shared.warn(text);
            }
            // Those that are left.
            _ => stream.files = files.into_iter().map(|file| file.name).collect(),
        }
    }

    /// Has those called who follow the run, once for each alert of the log.
    fn raise_alerts(&mut self, stream: &mut Stream, claim: &mut Claim) -> Result<(), Stop> {
        let num_raised = claim.num_alerts();
        while let Some((place, alert)) = stream.alerts.pop_front() {
            if place <= num_raised {
                continue;
            }
            let (bucket, id) = (stream.bucket.clone(), stream.id.clone());
            // Rows are waiting behind it.
            let patience = seconds(self.timing.flush / 2.0);
            let raised =
                self.persist_for(Some(patience), |client| client.alert(&bucket, &id, &alert));
            if self.forgive("an alert", raised)? {
                claim.set_num_alerts(place)?;
            } else {
                stream.is_lacking = true;
            }
        }
        Ok(())
    }

    /// Tells the server of the artifacts of the log, once of each.
    fn log_artifacts(&mut self, stream: &mut Stream, claim: &mut Claim) -> Result<(), Stop> {
        let num_logged = claim.num_artifacts();
        while let Some((place, artifact)) = stream.artifacts.pop_front() {
            if place <= num_logged {
                continue;
            }
            let (bucket, id) = (stream.bucket.clone(), stream.id.clone());
            let step = stream.last_step();
            let patience = seconds(self.timing.flush / 2.0);
            // Begun anew, it is the same version: the server knows it by its digest.
            let logged = self.persist_for(Some(patience), |client| {
                client.log_artifact(&bucket, &id, step, &artifact)
            });
            if self.forgive(&format!("artifact {}", artifact.name), logged)? {
                claim.set_num_artifacts(place)?;
            } else {
                stream.is_lacking = true;
            }
        }
        Ok(())
    }

    /// Everything gathered, in one request that is repeated as it is until it is answered.
    fn request(&mut self, stream: &mut Stream, exit: Option<i64>) -> Result<(), Stop> {
        let body = stream.body(exit);
        let (bucket, id) = (stream.bucket.clone(), stream.id.clone());
        let is_stopped = self.persist(|client| client.stream(&bucket, &id, &body))?;
        stream.last_request = Some(Instant::now());
        if is_stopped && self.is_live && !std::mem::replace(&mut self.is_stop_said, true) {
            let text = "W&B: Stop was pressed on the site: saving and stopping";
            self.shared.warn(text.to_owned());
            self.shared.want_stop();
        }
        Ok(())
    }

    /// Tries until there is an answer, or nobody waits for one.
    fn persist<T>(
        &mut self,
        attempt: impl FnMut(&Client) -> Result<T, Trouble>,
    ) -> Result<T, Stop> {
        self.persist_for(None, attempt)
    }

    /// The same, for no longer than `patience` if that is given.
    fn persist_for<T>(
        &mut self,
        patience: Option<Duration>,
        mut attempt: impl FnMut(&Client) -> Result<T, Trouble>,
    ) -> Result<T, Stop> {
        let started = Instant::now();
        let mut delay = self.timing.first_delay;
        loop {
            let was_ending = self.is_ending();
            let (why, after, is_absent) = match attempt(&self.client) {
                Ok(answer) => {
                    self.succeeded();
                    return Ok(answer);
                }
                Err(Trouble::Refused { status, why }) => {
                    return Err(Stop::Refused { status, why });
                }
                Err(Trouble::Passing {
                    why,
                    after,
                    is_absent,
                }) => (why, after, is_absent),
            };
            let failing = self
                .failing_since
                .get_or_insert_with(Instant::now)
                .elapsed();
            let is_hopeless = if self.is_live {
                was_ending && is_absent && !self.has_been_answered
            } else {
                failing >= seconds(self.timing.sync_patience)
            };
            let is_too_long = patience.is_some_and(|patience| started.elapsed() >= patience);
            if is_hopeless || is_too_long || self.shared.is_abandoned() {
                return Err(Stop::Unreachable { why });
            }
            self.say_if_failing(failing, &why);
            match after {
                // Asked for: the end of the run waits as well.
                Some(after) => {
                    self.shared.oblige(Some(Instant::now() + after));
                    self.shared.pause(after, Shared::is_abandoned);
                    self.shared.oblige(None);
                }
                None => {
                    let wait = seconds(delay * (1.0 + 0.25 * chance()));
                    self.shared.pause(wait, |shared| {
                        shared.is_abandoned() || (!was_ending && shared.ending().is_some())
                    });
                    delay = (delay * 2.0).min(self.timing.max_delay);
                }
            }
            if !was_ending && self.is_ending() {
                delay = self.timing.first_delay;
            }
            if self.shared.is_abandoned() {
                return Err(Stop::Unreachable { why });
            }
        }
    }

    fn succeeded(&mut self) {
        self.has_been_answered = true;
        self.failing_since = None;
        if std::mem::take(&mut self.is_said_to_fail) {
            self.shared
                .inform("W&B: the server answers again".to_owned());
        }
    }

    fn say_if_failing(&mut self, failing: Duration, why: &str) {
        if self.is_said_to_fail || failing < seconds(self.timing.offline_after) {
            return;
        }
        self.is_said_to_fail = true;
        let text = format!(
            "warning: W&B: nothing arrives at {} for now: {why}; {}",
            self.client.server.base_url,
            if self.is_live {
                format!("the run is logged to {} and sent once it does", self.place)
            } else {
                "trying on".to_owned()
            }
        );
        self.shared.warn(text);
    }

    fn is_ending(&self) -> bool {
        self.shared.ending().is_some()
    }

    /// Waits for more of the log.
    fn rest(&self, duration: Duration) -> Result<(), Stop> {
        let was_closed = self.shared.is_log_closed();
        self.shared.pause(duration, |shared| {
            let has_more = !was_closed && shared.is_log_closed();
            let is_over = was_closed && shared.ending().is_some();
            has_more || is_over || shared.is_abandoned()
        });
        if self.shared.is_abandoned() {
            let why = "the process ends".to_owned();
            return Err(Stop::Unreachable { why });
        }
        Ok(())
    }
}

/// The log, with one record in hand.
struct Source {
    reader: Reader<fs::File>,
    peeked: Option<Record>,
}

impl Source {
    fn next(&mut self) -> io::Result<Option<Record>> {
        if let Some(record) = self.peeked.take() {
            return Ok(Some(record));
        }
        let Some(bytes) = self.reader.next()? else {
            return Ok(None);
        };
        Ok(Some(Record::decode(&bytes)?))
    }
}

#[derive(Default)]
struct Head {
    metrics: Vec<Metric>,
    files: Vec<String>,
}

/// Sends files; those that another attempt may bring through stay.
fn put_once(
    client: &Client,
    stream: &mut Stream,
    files: &mut Vec<RunFile>,
    shared: &Shared,
) -> Result<(), Trouble> {
    /// Each has a thread of its own.
    const MOST_AT_ONCE: usize = 16;
    let mut passing = Ok(());
    let mut left = Vec::new();
    while !files.is_empty() {
        let few = &files[..files.len().min(MOST_AT_ONCE)];
        let outcomes = match client.put_files(&stream.bucket, &stream.id, few) {
            Ok(outcomes) => outcomes,
            Err(trouble) => {
                passing = Err(trouble);
                break;
            }
        };
        for (file, outcome) in files.drain(..few.len()).zip(outcomes) {
            match outcome {
                Ok(()) => stream.batch.uploaded.push(file.name),
                Err(Trouble::Refused { why, .. }) => {
                    let name = &file.name;
                    shared.warn(format!("warning: W&B: {name} was not sent: {why}"));
                }
                trouble => {
                    passing = trouble;
                    left.push(file);
                }
            }
        }
    }
    files.append(&mut left);
    passing
}

/// What a log names. A file that is gone is no reason to stop, and one outside of the folder was not meant.
fn read_files(segment: &Segment, names: Vec<String>) -> Vec<RunFile> {
    let folder = segment.folder().join("files");
    let is_inside = |name: &String| {
        let mut parts = Path::new(name).components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let read = |name: String| {
        let content = fs::read(folder.join(&name)).ok()?;
        Some(RunFile { name, content })
    };
    names
        .into_iter()
        .filter(is_inside)
        .filter_map(read)
        .collect()
}

/// The output of all logs, without times.
fn output(logs: &[Segment]) -> io::Result<String> {
    let mut text = String::new();
    for segment in logs {
        each(&segment.log, |record, _| {
            if let Record::Output { line, .. } = record {
                text.push_str(&line);
                text.push('\n');
            }
            Ok(())
        })?;
    }
    Ok(text)
}

/// How to send what is left, for messages.
pub(super) fn sync_command(folder: &Path) -> String {
    format!("tpu-train sync {}", folder.display())
}
