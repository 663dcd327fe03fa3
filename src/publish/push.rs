//! `trainer.checkpoint.hub`: checkpoints to the Hub while the run goes on.
//!
//! One thread sends them, one at a time; of those that wait for it only the newest. Steps hand it folders and take its
//! messages, and whatever goes wrong with the Hub neither ends nor slows a run that has begun. What is sent twice changes
//! nothing there, so nothing has to be remembered from one process to the next.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tt_checkpoint::{Checkpoint, CheckpointConfig, Hold};
use tt_hub::{DEFAULT_REVISION, Hub, HubError, Reference, Wait};
use tt_run::ending::command_line;
use tt_run::quote;
use tt_train::Mirror;

use super::{Publication, Published, destination, page_of, seen_by_all};
use crate::out;

pub(crate) const KEY: &str = "trainer.checkpoint.hub";
/// For the first answer of the Hub: a run does not wait longer to begin.
const PATIENCE_AT_START: Duration = Duration::from_secs(20);
/// After a checkpoint could not be sent, which took several attempts already.
const PAUSE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Sends checkpoints until it is finished or dropped.
pub(crate) struct Push {
    shared: Arc<Shared>,
    reference: Reference,
    is_private: bool,
}

/// What steps see of it.
struct Intake(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Option<Job>,
    /// Being sent, or could not be.
    current: Option<Left>,
    messages: Vec<String>,
    /// No more checkpoints come, and each gets one more attempt.
    is_closed: bool,
    is_called_off: bool,
    has_ended: bool,
}

struct Job {
    step: u64,
    folder: PathBuf,
    /// None: nothing can remove it.
    _hold: Option<Hold>,
}

/// A checkpoint that is not on the Hub.
#[derive(Clone)]
struct Left {
    step: u64,
    folder: PathBuf,
    why: Option<String>,
}

impl Push {
    /// Makes the repository, if there is none, and starts to send what will come. Error: the Hub refuses, as it would each
    /// time. If it does not answer, the run goes on, and each checkpoint asks again.
    pub(crate) fn open(config: &CheckpointConfig) -> anyhow::Result<Option<Self>> {
        let Some(text) = &config.hub else {
            return Ok(None);
        };
        let (hub, reference) = (super::client()?, destination(text)?);
        let begun = Instant::now();
        let wait = Wait {
            interrupt: &|| begun.elapsed() > PATIENCE_AT_START,
            progress: &|_| (),
        };
        let made = hub.create_repo(&reference.repo, config.hub_private, wait);
        let opened = made.and_then(|visibility| {
            hub.check_writable(&reference, wait)?;
            Ok(visibility)
        });
        let mut is_made = false;
        match opened {
            Ok(visibility) => {
                is_made = true;
                let warning = seen_by_all(&hub, &reference, visibility);
                if let Some(warning) = warning.filter(|_| config.hub_private) {
                    out::line(warning);
                }
            }
            Err(error @ (HubError::Unreachable { .. } | HubError::Interrupted)) => {
                let why = match error {
                    HubError::Interrupted => {
                        format!("no answer in {} s", PATIENCE_AT_START.as_secs())
                    }
                    error => error.to_string(),
                };
                out::line(format!(
                    "warning: `{KEY}`: {why}; the run goes on, and each checkpoint tries again"
                ));
            }
            Err(error) => return Err(error.into()),
        }
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let sender = Sender {
            shared: Arc::clone(&shared),
            hub,
            reference: reference.clone(),
            is_private: config.hub_private,
            is_made,
            told: None,
        };
        thread::Builder::new()
            .name("hub".into())
            .spawn(move || sender.run())?;
        Ok(Some(Self {
            shared,
            reference,
            is_private: config.hub_private,
        }))
    }

    pub(crate) fn mirror(&self) -> Box<dyn Mirror> {
        Box::new(Intake(Arc::clone(&self.shared)))
    }

    /// The last checkpoint of a run that has ended.
    pub(crate) fn take(&self, last: &Checkpoint) {
        self.shared.take(last.step(), last.dir().to_owned(), None);
    }

    /// Waits until all is sent, but no longer than `at_most`, nor after `is_interrupted`; says what was sent, and which
    /// command sends what is left. Gives whether that was interrupted.
    pub(crate) fn finish(self, at_most: Duration, is_interrupted: &dyn Fn() -> bool) -> bool {
        let begun = Instant::now();
        let mut state = self.shared.lock();
        state.is_closed = true;
        self.shared.changed.notify_all();
        let mut is_announced = false;
        while !state.has_ended && begun.elapsed() < at_most && !is_interrupted() {
            state.messages.drain(..).for_each(out::line);
            let step = state.current.as_ref().map(|current| current.step);
            if let Some(step) = step.filter(|_| !is_announced) {
                is_announced = true;
                out::line(format!(
                    "sending step {step} to {}, for at most {} s (Ctrl-C ends that)",
                    self.reference,
                    at_most.as_secs()
                ));
            }
            state = self.shared.wait(state, POLL);
        }
        state.is_called_off = true;
        state.messages.drain(..).for_each(out::line);
        let waiting = state.waiting.as_ref().map(|job| Left {
            step: job.step,
            folder: job.folder.clone(),
            why: None,
        });
        let left = waiting.or_else(|| state.current.clone());
        if let Some(left) = &left {
            self.report(left);
        }
        left.is_some() && is_interrupted()
    }

    fn report(&self, left: &Left) {
        let why = left.why.as_ref();
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let mut command = vec![
            "upload".to_owned(),
            format!("checkpoint={}", quote::value(&left.folder)),
            format!("repo={}", self.reference.repo.id),
        ];
        if self.reference.revision != DEFAULT_REVISION {
            command.push(format!("revision={}", self.reference.revision));
        }
        if !self.is_private {
            command.push("private=false".to_owned());
        }
        out::line(format!(
            "warning: step {} is not on the Hub yet{why}; this sends it:\n  {}",
            left.step,
            command_line(&command)
        ));
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.shared.lock().is_called_off = true;
        self.shared.changed.notify_all();
    }
}

impl Mirror for Intake {
    fn take(&mut self, step: u64, folder: PathBuf, hold: Hold) {
        self.0.take(step, folder, Some(hold));
    }

    fn messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().messages)
    }
}

fn passed_over(step: u64, newer: u64) -> String {
    format!("note: step {step} is not sent to the Hub: step {newer} was there before its turn came")
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of it is one assignment, so it is whole whatever has become of who last had it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn take(&self, step: u64, folder: PathBuf, hold: Option<Hold>) {
        let mut state = self.lock();
        let job = Job {
            step,
            folder,
            _hold: hold,
        };
        if let Some(older) = state.waiting.replace(job) {
            state.messages.push(passed_over(older.step, step));
        }
        self.changed.notify_all();
    }

    /// The next to send; `None` when there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_called_off {
                return None;
            }
            if let Some(job) = state.waiting.take() {
                state.current = Some(Left {
                    step: job.step,
                    folder: job.folder.clone(),
                    why: None,
                });
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state = self.wait(state, PAUSE);
        }
    }
}

/// The thread that sends.
struct Sender {
    shared: Arc<Shared>,
    hub: Hub,
    reference: Reference,
    is_private: bool,
    /// The repository is there.
    is_made: bool,
    /// The failure last told: it may be the same with every checkpoint.
    told: Option<String>,
}

/// However the thread ends, nobody waits for it any more.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Sender {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _end = End(Arc::clone(&shared));
        while let Some(job) = shared.next() {
            while self.attempt(&shared, &job) {}
        }
    }

    /// Whether to try again.
    fn attempt(&mut self, shared: &Shared, job: &Job) -> bool {
        let was_closed = shared.lock().is_closed;
        let sent = self.send(job);
        let mut state = shared.lock();
        let error = match sent {
            Ok(published) => {
                state.current = None;
                self.told = None;
                let message = self.success(job.step, &published);
                state.messages.push(message);
                return false;
            }
            Err(_) if state.is_called_off => return false,
            Err(error) => error,
        };
        let (why, may_pass) = (format!("{error:#}"), may_pass(&error));
        if let Some(current) = &mut state.current {
            current.why = Some(why.clone());
        }
        if self.told.as_ref() != Some(&why) {
            state.messages.push(format!(
                "warning: step {} could not be sent to the Hub: {why}; it is tried again{}",
                job.step,
                if may_pass {
                    ""
                } else {
                    " with the next checkpoint"
                }
            ));
            self.told = Some(why);
        }
        let until = Instant::now() + PAUSE;
        while !was_closed && !state.is_called_off {
            if let Some(newer) = &state.waiting {
                let message = passed_over(job.step, newer.step);
                state.messages.push(message);
                return false;
            }
            let is_over = Instant::now() >= until || state.is_closed;
            if is_over && may_pass {
                return true;
            }
            if state.is_closed {
                return false;
            }
            state = shared.wait(state, PAUSE);
        }
        false
    }

    fn send(&mut self, job: &Job) -> anyhow::Result<Published> {
        let shared = &self.shared;
        let wait = Wait {
            interrupt: &|| shared.lock().is_called_off,
            progress: &|_| (),
        };
        if !self.is_made {
            let repo = &self.reference.repo;
            self.hub.create_repo(repo, self.is_private, wait)?;
            self.is_made = true;
        }
        let mut publication = Publication::of(&job.folder, &self.reference)?;
        publication.message = format!("Step {}", job.step);
        publication.send(&self.hub, wait)
    }

    fn success(&self, step: u64, published: &Published) -> String {
        let (page, commit) = (page_of(&self.hub, &self.reference), &published.commit);
        match commit.changed.len() {
            0 => format!("step {step} is on {page} already: commit {}", commit.id),
            _ => format!("step {step} sent to {page}: commit {}", commit.id),
        }
    }
}

/// Whether the same may work in a while, with nobody doing anything about it.
fn may_pass(error: &anyhow::Error) -> bool {
    use HubError::{Answer, Corrupt, Disk, Locked, Status, Unreachable, Untrusted};
    matches!(
        error.downcast_ref(),
        Some(
            Unreachable { .. }
                | Status { .. }
                | Answer { .. }
                | Corrupt { .. }
                | Untrusted { .. }
                | Locked { .. }
                | Disk { .. }
        )
    )
}
