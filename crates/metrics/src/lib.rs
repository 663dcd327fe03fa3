//! The record of a run: [`StepRecord`] rows in `metrics.jsonl`, the sinks that show them, and
//! what else a run folder says about its run.
//!
//! The JSONL file is the record. A [`Sink`] gets each row after it is on disk; those that the configuration can name are
//! in [`TABLE`].
//!
//! ```
//! use tt_metrics::{Console, End, Jsonl, Metrics, Progress, RunInfo, StepRecord, Summary, Truncation};
//!
//! # let tmp = tempfile::tempdir()?;
//! # let dir = tmp.path();
//! let jsonl = Jsonl::create(&dir.join("metrics.jsonl"))?;
//! let mut metrics = Metrics::new(jsonl).with(Console::new(Progress::Auto));
//! let run = RunInfo { num_steps: Some(1), log_interval: 10, ..RunInfo::default() };
//! metrics.start(&run, Truncation::default());
//! metrics.log(StepRecord { step: 1, loss: 0.3, ..StepRecord::default() })?;
//! metrics.finish(&End::Finished)?;
//! Summary { final_val_loss: Some(0.3), ..Summary::default() }.write(&dir.join("summary.json"))?;
//!
//! let text = std::fs::read_to_string(dir.join("metrics.jsonl"))?;
//! assert!(text.starts_with(r#"{"step":1,"loss":0.3,"#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod alert;
mod config;
mod console;
mod environment;
mod error;
mod histogram;
mod image;
mod jsonl;
mod record;
mod sample;
mod sink;
mod sinks;
mod summary;
mod tail;
pub mod terminal;
mod text;
pub mod transcript;
mod trend;

use tt_config::{Entry, Table};
use wandb::{Wandb, WandbConfig};

pub use alert::{Alert, AlertLevel};
pub use config::{LoggingConfig, Progress, SinkConfig};
pub use console::{Console, ConsoleConfig};
pub use environment::{
    available_memory_bytes, cpu_features, environment, memory_bytes, peak_rss_bytes,
};
pub use error::{Error, Result, with_causes};
pub use histogram::{Histogram, Histograms, NUM_BINS, bounds};
pub use image::Image;
pub use jsonl::{Jsonl, Truncation};
pub use record::{NON_FINITE, Record, Scalar, Scalars, StepRecord, TIME_KEYS, ValRecord};
pub use sample::Sample;
pub use sink::{BuildSink, End, Metrics, RunInfo, Sink, SinkError, SinkResult};
pub use sinks::tensorboard::{TensorBoard, TensorBoardConfig};
pub use sinks::wandb;
pub use summary::Summary;
pub use tail::last_row_with;

/// What `logging.sinks.NAME.type` may name.
pub const TABLE: Table<BuildSink> = Table::new(
    "sink",
    &[
        Entry::new::<ConsoleConfig>("console.Console", "progress on standard output", |kwargs| {
            let config: ConsoleConfig = kwargs.extract()?;
            Ok(Box::new(Console::new(config.progress)))
        }),
        Entry::new::<TensorBoardConfig>(
            "tensorboard.TensorBoard",
            "event files for TensorBoard",
            |kwargs| {
                let config: TensorBoardConfig = kwargs.extract()?;
                Ok(Box::new(TensorBoard::new(config)))
            },
        ),
        Entry::new::<WandbConfig>("wandb.Wandb", "Weights & Biases", |kwargs| {
            let config: WandbConfig = kwargs.extract()?;
            Ok(Box::new(Wandb::new(config)))
        }),
    ],
);
