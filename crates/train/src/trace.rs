//! A trace of a few steps, as Chrome (`chrome://tracing`) and Perfetto read it: spans of the step and its parts, of modules
//! forward and backward, of the gradients of operations, and of kernels, one within another; on a TPU each launch and copy,
//! and the device's memory by owner. Beside it a summary to read, for each step.
//!
//! Source: "Trace Event Format", complete events (`ph: X`) and counters (`ph: C`), times in microseconds.

mod chrome;
mod memory;
mod place;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::{Hooks, ModulePath};
use tt_tensor::Tensor;
use tt_tensor::profile::{self, Span};

use crate::error::Result;
use crate::training::Training;
pub(crate) use memory::{MemoryRecord, Moment};
use summary::Summary;

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
            training.memory = MemoryRecord::of(training);
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

/// Makes spans of modules, which lie within one another, and looks at the memory between them.
pub(crate) struct ModuleSpans {
    open: Mutex<Vec<Span>>,
    memory: Option<Arc<MemoryRecord>>,
}

impl ModuleSpans {
    pub(crate) fn new(memory: Option<Arc<MemoryRecord>>) -> Self {
        Self {
            open: Mutex::default(),
            memory,
        }
    }

    fn enter(&self, kind: &'static str, module: &ModulePath) {
        let span = profile::span(kind, || match module.as_str() {
            "" => "model".to_owned(),
            path => path.to_owned(),
        });
        self.spans().push(span);
        self.look();
    }

    fn exit(&self) {
        self.look();
        drop(self.spans().pop());
    }

    fn look(&self) {
        if let Some(memory) = &self.memory {
            memory.sample(Moment::InPass);
        }
    }

    fn spans(&self) -> std::sync::MutexGuard<'_, Vec<Span>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hooks for ModuleSpans {
    fn enter_forward(&self, module: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.enter("module", module);
        Ok(())
    }

    fn exit_forward(&self, _: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.exit();
        Ok(())
    }

    fn enter_backward(&self, module: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.enter("module backward", module);
        Ok(())
    }

    fn exit_backward(&self, _: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.exit();
        Ok(())
    }
}
