//! The sink: stores where the record ends, and starts the threads that do the rest.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::client::Client;
use super::config::{Mode, WandbConfig};
use super::journal::Journal;
use super::media::Media;
use super::segments::{self, Segment};
use super::settings::{Environment, OfRun, Settings};
use super::shared::{Mark, Shared, now};
use super::timing::{ALERT_INTERVAL, Timing, seconds};
use super::upload::{Stop, Uploader, sync_command};
use crate::alert::Alert;
use crate::image::Image;
use crate::record::Record;
use crate::sink::{End, RunInfo, Sink, SinkResult};
use crate::transcript::{self, Stream};

/// `wandb.Wandb`.
pub struct Wandb {
    config: WandbConfig,
    environment: Environment,
    /// Nobody has asked for it by name.
    is_by_itself: bool,
    running: Option<Running>,
    /// When there was an alert of a title last.
    alerted: HashMap<String, Instant>,
}

/// The two threads.
struct Running {
    shared: Arc<Shared>,
    timing: Timing,
    /// How what is left can be sent.
    sync: String,
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
            alerted: HashMap::new(),
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
        let root = segments::root(settings.dir.as_deref().unwrap_or(&run.dir));
        let sync = sync_command(&root);
        let media = Media::of(&run.dir);
        let (alive, done) = channel();
        self.running = Some(Running {
            shared: shared.clone(),
            timing: self.config.timing,
            sync: sync.clone(),
            done,
        });
        let work = Work {
            run: run.clone(),
            config: self.config.clone(),
            settings,
            shared,
            sync,
            alive,
        };
        let thread = thread::Builder::new().name("wandb log".into());
        thread.spawn(move || work.keep_log(media))?;
        Ok(())
    }

    /// Takes no longer than to store the position.
    fn record(&mut self, _record: &Record, position: u64) -> SinkResult {
        if let Some(running) = &self.running {
            let time = now();
            running.shared.advance(Mark { position, time });
        }
        Ok(())
    }

    fn alert(&mut self, alert: &Alert) -> SinkResult {
        let last = self.alerted.get(&alert.title);
        if let Some(running) = &self.running
            && last.is_none_or(|last| last.elapsed() >= ALERT_INTERVAL)
        {
            self.alerted.insert(alert.title.clone(), Instant::now());
            running.shared.alert(alert.clone());
        }
        Ok(())
    }

    fn checkpoint(&mut self, step: u64, dir: &Path) -> SinkResult {
        if let Some(running) = self
            .running
            .as_ref()
            .filter(|_| self.config.log_checkpoints)
        {
            running.shared.note_checkpoint(step, dir.to_owned());
        }
        Ok(())
    }

    fn image(&mut self, image: &Image) -> SinkResult {
        if let Some(running) = &self.running {
            running.shared.show(image.clone());
        }
        Ok(())
    }

    fn wants_stop(&mut self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.shared.is_stop_wanted())
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
            // A server that asks for an hour is not waited for.
            let longest = started + seconds(self.timing.max_delay);
            let obliged = self.shared.obliged_until().unwrap_or(started);
            let from = obliged.clamp(started, longest);
            let until = from + seconds(self.timing.flush);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.shared.abandon();
                // They say why something is left, unless they hang.
                let ended = self.done.recv_timeout(Duration::from_millis(200));
                if ended != Err(RecvTimeoutError::Disconnected) {
                    let (sync, waited) = (&self.sync, started.elapsed().as_secs());
                    self.shared.warn(format!(
                        "warning: W&B: not all of the run could be sent: no answer in {waited} s; `{sync}` sends the rest"
                    ));
                }
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
                    transcript::keep(Stream::Err, &text);
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
    sync: String,
    /// Dropped at the end.
    alive: Sender<()>,
}

impl Work {
    fn keep_log(self, media: Media) {
        self.shared.join_in();
        if let Err(error) = self.try_to_keep_log(media) {
            self.shared.warn(format!(
                "warning: W&B: its log cannot be written: {error}; it gets nothing more of this run, metrics.jsonl has it all"
            ));
        }
        self.shared.close_log();
    }

    fn try_to_keep_log(&self, media: Media) -> io::Result<()> {
        let transcript = transcript::place();
        let begun = Journal::begin(
            &self.run,
            &self.config,
            &self.settings,
            self.shared.clone(),
            media,
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
                self.sync
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
        let sync = self.sync.clone();
        let thread = thread::Builder::new().name("wandb upload".into());
        thread.spawn(move || {
            let _alive: Sender<()> = alive;
            shared.join_in();
            let folder = logs.last().map(Segment::folder).unwrap_or("".as_ref());
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
