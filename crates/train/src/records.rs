//! What a rank records: of several, the first all and the others nothing, as they would all record the same.

use tt_metrics::{End, Metrics, Record, Sample};

use crate::error::Result;

pub(crate) struct Records(Option<Metrics>);

impl Records {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Some(metrics))
    }

    /// Another rank's records are those of the run.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn log(&mut self, record: impl Into<Record>) -> Result<()> {
        self.with(|it| it.log(record))
    }

    pub(crate) fn message(&mut self, text: &str) {
        if let Some(metrics) = &mut self.0 {
            metrics.message(text);
        }
    }

    pub(crate) fn sample(&mut self, sample: &Sample) -> Result<()> {
        self.with(|it| it.sample(sample))
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        self.with(|it| it.sync())
    }

    pub(crate) fn finish(&mut self, end: &End) -> Result<()> {
        match self.0.take() {
            Some(metrics) => Ok(metrics.finish(end)?),
            None => Ok(()),
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Metrics) -> tt_metrics::Result<()>) -> Result<()> {
        match &mut self.0 {
            Some(metrics) => Ok(act(metrics)?),
            None => Ok(()),
        }
    }
}
