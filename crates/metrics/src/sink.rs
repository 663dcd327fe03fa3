//! Where records go: to the JSONL file first, then to whoever shows them.

use crate::{error::Result, jsonl::Jsonl, record::Record};

/// Shows records, or passes them on. No method can fail or may block: a sink must not end or
/// slow a run.
///
/// A sink with a thread of its own, such as one that uploads, needs nothing of `record` but
/// `position`: it wakes its thread, which reads the file up to there at its own pace.
pub trait Sink: Send {
    /// `position` is the length of the JSONL file with this record in it.
    fn record(&mut self, record: &Record, position: u64);

    /// A line or more for the user.
    fn message(&mut self, text: &str) {
        let _ = text;
    }

    /// The run has ended; nothing follows.
    fn finish(&mut self) {}
}

/// The record of a run and its sinks.
pub struct Metrics {
    jsonl: Jsonl,
    sinks: Vec<Box<dyn Sink>>,
}

impl Metrics {
    pub fn new(jsonl: Jsonl) -> Self {
        Self {
            jsonl,
            sinks: Vec::new(),
        }
    }

    /// Adds a sink, which gets what is logged from now on.
    #[must_use]
    pub fn with(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Writes the record to disk, then hands it to every sink.
    pub fn log(&mut self, record: impl Into<Record>) -> Result<()> {
        let record = record.into();
        self.jsonl.write(&record)?;
        for sink in &mut self.sinks {
            sink.record(&record, self.jsonl.position());
        }
        Ok(())
    }

    pub fn message(&mut self, text: &str) {
        for sink in &mut self.sinks {
            sink.message(text);
        }
    }

    /// [`Jsonl::sync`].
    pub fn sync(&self) -> Result<()> {
        self.jsonl.sync()
    }

    /// Ends the run for all sinks and makes the record durable.
    pub fn finish(mut self) -> Result<()> {
        for sink in &mut self.sinks {
            sink.finish();
        }
        self.jsonl.sync()
    }
}
