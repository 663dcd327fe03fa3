//! Where records go: to the JSONL file first, then to whoever shows them.

use std::error::Error as StdError;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tt_config::{Diagnostics, Section};

use crate::{
    alert::Alert,
    error::{Result, with_causes},
    histogram::{Histogram, Histograms},
    image::Image,
    jsonl::{Jsonl, Truncation},
    record::Record,
    sample::Sample,
    transcript::{self, Stream},
};

/// What a sink has met.
pub type SinkError = Box<dyn StdError + Send + Sync>;
/// What a sink's methods give.
pub type SinkResult = std::result::Result<(), SinkError>;

/// Builds a sink from `logging.sinks.NAME.kwargs`. It opens nothing yet: that is for [`Sink::start`].
pub type BuildSink = fn(&Section<'_>) -> std::result::Result<Box<dyn Sink>, Diagnostics>;

/// Shows records, or passes them on.
///
/// No method may block, and none can end a run: the first error (or panic) of a sink is said once, and the sink hears
/// nothing more of the run. In this order: `start`, `rewound` if rows have been taken back, `record` and the others as
/// they come, `closing`, `image` and `message`, `finish`.
///
/// A sink with a thread of its own, such as one that uploads, needs nothing of `record` but
/// `position`: it wakes its thread, which reads the file up to there at its own pace.
pub trait Sink: Send {
    /// Which run this is, before anything else of it.
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        let _ = run;
        Ok(())
    }

    /// The run goes on from a checkpoint of `step`; what an earlier process has logged after it is no longer true, and
    /// is made again. The JSONL file has been cut to `position`.
    fn rewound(&mut self, step: u64, position: u64) -> SinkResult {
        let _ = (step, position);
        Ok(())
    }

    /// `position` is the length of the JSONL file with this record in it.
    fn record(&mut self, record: &Record, position: u64) -> SinkResult;

    /// How gradients and weights are spread in a step: before the record of that step.
    fn histograms(&mut self, histograms: &Histograms) -> SinkResult {
        let _ = histograms;
        Ok(())
    }

    /// What the model has written. The user has been shown it.
    fn sample(&mut self, sample: &Sample) -> SinkResult {
        let _ = sample;
        Ok(())
    }

    /// A line or more for the user.
    fn message(&mut self, text: &str) -> SinkResult {
        let _ = text;
        Ok(())
    }

    /// Something that somebody may want to be called for. The user has been told.
    fn alert(&mut self, alert: &Alert) -> SinkResult {
        let _ = alert;
        Ok(())
    }

    /// The checkpoint of `step` is complete, in the folder `dir`.
    fn checkpoint(&mut self, step: u64, dir: &Path) -> SinkResult {
        let _ = (step, dir);
        Ok(())
    }

    /// Whether somebody who follows the run through this sink wants it to save and stop. Asked after each step.
    fn wants_stop(&mut self) -> bool {
        false
    }

    /// No record follows: the run will have ended so. What is printed from here on is printed past the sinks.
    fn closing(&mut self, end: &End) -> SinkResult {
        let _ = end;
        Ok(())
    }

    /// A picture of the run, after its last record.
    fn image(&mut self, image: &Image) -> SinkResult {
        let _ = image;
        Ok(())
    }

    /// What the sink has to say to the user since it was last asked: after each record, and at the end.
    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The run has ended in this process; nothing follows but a last [`Sink::news`]. The one method that may wait, as long
    /// as it says, for what is still on its way.
    fn finish(&mut self, end: &End) -> SinkResult {
        let _ = end;
        Ok(())
    }
}

/// Which run it is that a sink is told of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunInfo {
    /// Eight letters and digits: the same each time the run goes on, and no other run's.
    pub id: String,
    /// `name`, `project` and `notes` of the configuration.
    pub name: Option<String>,
    /// `project` of the configuration.
    pub project: Option<String>,
    /// `notes` of the configuration.
    pub notes: Option<String>,
    /// The folder of the run.
    pub dir: PathBuf,
    /// The whole configuration, resolved.
    pub config: Value,
    /// Steps done in earlier processes: 0 for a run that begins.
    pub step: u64,
    /// Steps of the whole run, if that is known.
    pub num_steps: Option<u64>,
    /// `trainer.log_interval`: every how many steps something is worth a line.
    pub log_interval: u64,
}

/// How a run has ended in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Finished,
    /// Saved and stopped on request; it can go on.
    Stopped,
    /// By an error, which this is.
    Failed(String),
}

/// The record of a run and its sinks.
pub struct Metrics {
    /// `None`: another rank's record is that of the run.
    jsonl: Option<Jsonl>,
    /// `samples.jsonl`.
    samples: Option<Jsonl>,
    /// `histograms.jsonl`.
    histograms: Option<Jsonl>,
    sinks: Vec<Named>,
    is_closing: bool,
    has_ended: bool,
}

struct Named {
    name: String,
    sink: Box<dyn Sink>,
}

impl Metrics {
    /// A record without sinks.
    pub fn new(jsonl: Jsonl) -> Self {
        let mut metrics = Self::none();
        metrics.jsonl = Some(jsonl);
        metrics
    }

    /// No record and no sinks: another rank's are those of the run.
    pub fn none() -> Self {
        Self {
            jsonl: None,
            samples: None,
            histograms: None,
            sinks: Vec::new(),
            is_closing: false,
            has_ended: false,
        }
    }

    /// Adds a sink, which gets what is logged from now on. Messages call it by its type.
    #[must_use]
    pub fn with<S: Sink + 'static>(self, sink: S) -> Self {
        let name = std::any::type_name::<S>();
        let name = name.rsplit("::").next().unwrap_or(name);
        self.with_named(name, Box::new(sink))
    }

    /// Adds a sink under the name that the configuration gives it.
    #[must_use]
    pub fn with_named(mut self, name: impl Into<String>, sink: Box<dyn Sink>) -> Self {
        let name = name.into();
        self.sinks.push(Named { name, sink });
        self
    }

    /// Where [`Metrics::sample`] keeps samples.
    #[must_use]
    pub fn keeping_samples(mut self, samples: Jsonl) -> Self {
        self.samples = Some(samples);
        self
    }

    /// Where [`Metrics::histograms`] keeps histograms.
    #[must_use]
    pub fn keeping_histograms(mut self, histograms: Jsonl) -> Self {
        self.histograms = Some(histograms);
        self
    }

    /// Tells the sinks which run it is, and of rows that have been taken back.
    pub fn start(&mut self, run: &RunInfo, truncation: Truncation) {
        self.tell(|sink| sink.start(run));
        if truncation.rows_dropped > 0 {
            let position = self.jsonl.as_ref().map_or(0, Jsonl::position);
            self.tell(|sink| sink.rewound(run.step, position));
        }
        self.pass_on_news();
    }

    /// Writes the record to disk, then hands it to every sink.
    pub fn log(&mut self, record: impl Into<Record>) -> Result<()> {
        let record = record.into();
        let Some(jsonl) = &mut self.jsonl else {
            return Ok(());
        };
        jsonl.write(&record)?;
        let position = jsonl.position();
        self.tell(|sink| sink.record(&record, position));
        self.pass_on_news();
        Ok(())
    }

    /// Keeps what the model has written, and hands it to every sink. It is not shown to the user.
    pub fn sample(&mut self, sample: &Sample) -> Result<()> {
        if let Some(samples) = &mut self.samples {
            let line = serde_json::to_string(sample).expect("a number and two texts");
            samples.append_line(&(line + "\n"))?;
        }
        self.tell(|sink| sink.sample(sample));
        Ok(())
    }

    /// Keeps how gradients and weights are spread in `step`, and hands it to every sink. To be called before the record of
    /// that step: who reads the files then finds them when it finds the record.
    pub fn histograms(&mut self, step: u64, histograms: Vec<Histogram>) -> Result<()> {
        let histograms = Histograms { step, histograms };
        if let Some(file) = &mut self.histograms {
            let line = serde_json::to_string(&histograms).expect("numbers and texts");
            file.append_line(&(line + "\n"))?;
        }
        self.tell(|sink| sink.histograms(&histograms));
        Ok(())
    }

    /// Hands every sink what somebody may want to be called for.
    pub fn alert(&mut self, alert: &Alert) {
        self.tell(|sink| sink.alert(alert));
    }

    /// Tells every sink of a checkpoint that is complete.
    pub fn checkpoint(&mut self, step: u64, dir: &Path) {
        self.tell(|sink| sink.checkpoint(step, dir));
    }

    /// Whether somebody wants the run to save and stop: see [`Sink::wants_stop`].
    pub fn wants_stop(&mut self) -> bool {
        let mut is_wanted = false;
        self.tell(|sink| {
            is_wanted |= sink.wants_stop();
            Ok(())
        });
        is_wanted
    }

    /// Tells every sink that no record follows, so that more can be printed: see [`Sink::closing`].
    pub fn closing(&mut self, end: &End) {
        self.is_closing = true;
        self.tell(|sink| sink.closing(end));
    }

    /// Hands every sink a picture of the run.
    pub fn image(&mut self, image: &Image) {
        self.tell(|sink| sink.image(image));
    }

    /// Says something to the user through every sink.
    pub fn message(&mut self, text: &str) {
        self.tell(|sink| sink.message(text));
    }

    /// [`Jsonl::sync`].
    pub fn sync(&self) -> Result<()> {
        self.jsonl.as_ref().map_or(Ok(()), Jsonl::sync)
    }

    /// Ends the run for all sinks and makes the record durable.
    pub fn finish(mut self, end: &End) -> Result<()> {
        self.end(end);
        self.jsonl.as_ref().map_or(Ok(()), Jsonl::sync)
    }

    fn end(&mut self, end: &End) {
        self.has_ended = true;
        if !self.is_closing {
            self.closing(end);
        }
        self.tell(|sink| sink.finish(end));
        self.pass_on_news();
    }

    /// Has the user hear what sinks have to say, through every sink.
    fn pass_on_news(&mut self) {
        let mut news = Vec::new();
        self.tell(|sink| {
            news.append(&mut sink.news());
            Ok(())
        });
        for text in news {
            self.message(&text);
        }
    }

    /// Drops those sinks that fail, saying so.
    fn tell(&mut self, mut event: impl FnMut(&mut dyn Sink) -> SinkResult) {
        let mut warnings = Vec::new();
        self.sinks.retain_mut(|Named { name, sink }| {
            // A sink that has panicked is not asked again, so nobody sees it half changed.
            let told = catch_unwind(AssertUnwindSafe(|| event(&mut **sink)));
            let why = match told {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => with_causes(&*error),
                Err(_) => "it panicked".to_owned(),
            };
            warnings.push(format!(
                "warning: logging.sinks.{name}: {why}; it gets nothing more of this run, metrics.jsonl has it all"
            ));
            false
        });
        for warning in warnings {
            if self.sinks.is_empty() {
                let _ = writeln!(io::stderr(), "{warning}");
                transcript::keep(Stream::Err, &format!("{warning}\n"));
            } else {
                self.message(&warning);
            }
        }
    }
}

impl Drop for Metrics {
    /// An error may end a run before anyone could say so.
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(&End::Failed("ended before it was done".to_owned()));
        }
    }
}
