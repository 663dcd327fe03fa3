//! A trace of a few steps, as Chrome (`chrome://tracing`) and Perfetto read it: spans of the step and its parts, of modules
//! forward and backward, of the gradients of operations, and of kernels, one within another; on a TPU each launch and copy,
//! and the device's memory by owner. Beside it a summary to read, for each step.
//!
//! Source: "Trace Event Format", complete events (`ph: X`) and counters (`ph: C`), times in microseconds.

mod budget;
mod chrome;
mod place;
mod summary;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::profile;

use crate::device_memory::MemoryRecord;
use crate::error::Result;
use crate::training::Training;
use summary::Summary;

pub use budget::{Budget, OperationCost, budget};

const FOLDER: &str = "profile";

/// `profile`: a trace of a few steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// How it is written.
    #[serde(rename = "type")]
    pub kind: TraceFormat,
    /// The first step that is traced, counted from 1 where this process begins: the first ones make buffers that later ones
    /// find.
    #[schemars(range(min = 1))]
    pub first_step: u64,
    /// How many steps are traced.
    #[schemars(range(min = 1))]
    pub num_steps: u64,
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceFormat {
    /// JSON for `chrome://tracing` and <https://ui.perfetto.dev>.
    #[default]
    Chrome,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self {
            kind: TraceFormat::default(),
            first_step: 3,
            num_steps: 3,
        }
    }
}

/// Traces the steps of a run that are to be.
pub(crate) struct Tracer {
    config: ProfileConfig,
    /// Steps that this process has begun.
    begun: u64,
    /// The first step that is in the trace.
    first: u64,
}

/// What has been written.
pub(crate) struct Written {
    pub(crate) trace: PathBuf,
    pub(crate) summary: Summary,
}

impl Tracer {
    pub(crate) fn new(config: ProfileConfig) -> Self {
        Self {
            config,
            begun: 0,
            first: 0,
        }
    }

    /// Before the next step.
    pub(crate) fn before(&mut self, training: &mut Training) -> Result<()> {
        self.begun += 1;
        if self.begun == self.config.first_step {
            self.first = training.step + 1;
            profile::begin(training.device)?;
            let (device, params) = (training.device, &training.params);
            training.memory = MemoryRecord::begin(device, params, &training.optimizers);
        }
        Ok(())
    }

    /// After a step, or when there will be no more. Gives what was written, if this was the last to be traced.
    pub(crate) fn after(
        &mut self,
        training: &mut Training,
        is_over: bool,
        run_dir: &Path,
    ) -> Result<Option<Written>> {
        let is_last = self.begun + 1 >= self.config.first_step + self.config.num_steps;
        if !profile::is_on() || !(is_last || is_over) {
            return Ok(None);
        }
        let events = profile::end();
        let samples = training.memory.take();
        let samples = samples.map_or_else(Vec::new, |record| record.samples());
        let summary = Summary::of(&events, &samples);
        let folder = run_dir.join(FOLDER);
        let name = format!("steps-{:08}-{:08}", self.first, training.step);
        let trace = folder.join(format!("{name}.json"));
        tt_disk::create_dir(&folder)?;
        let json = chrome::trace(&events, &samples);
        tt_disk::write_file(&trace, json.to_string().as_bytes())?;
        let text = folder.join(format!("{name}.txt"));
        tt_disk::write_file(&text, summary.to_string().as_bytes())?;
        Ok(Some(Written { trace, summary }))
    }
}
