//! A trace of a few steps, as Chrome (`chrome://tracing`) and Perfetto read it: spans of the step and its parts, of modules
//! forward and backward, of the gradients of operations, and of kernels, one within another.
//!
//! Source: "Trace Event Format", complete events (`ph: X`), times in microseconds.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_nn::{Hooks, ModulePath};
use tt_tensor::Tensor;
use tt_tensor::profile::{self, Event, Span};

use crate::error::Result;

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

impl Tracer {
    pub(crate) fn new(config: ProfileConfig) -> Self {
        Self {
            config,
            begun: 0,
            first: 0,
        }
    }

    /// Before step `step` of the run.
    pub(crate) fn before(&mut self, step: u64) {
        self.begun += 1;
        if self.begun == self.config.first_step {
            self.first = step;
            profile::begin();
        }
    }

    /// After step `step`, or when there will be no more. Gives what was written, if this was the last to be traced.
    pub(crate) fn after(
        &mut self,
        step: u64,
        is_over: bool,
        run_dir: &Path,
    ) -> Result<Option<PathBuf>> {
        let is_last = self.begun + 1 >= self.config.first_step + self.config.num_steps;
        if !profile::is_on() || !(is_last || is_over) {
            return Ok(None);
        }
        let folder = run_dir.join(FOLDER);
        let path = folder.join(format!("steps-{:08}-{step:08}.json", self.first));
        tt_disk::create_dir(&folder)?;
        tt_disk::write_file(&path, chrome(&profile::end()).to_string().as_bytes())?;
        Ok(Some(path))
    }
}

fn chrome(events: &[Event]) -> Value {
    let events = events.iter().map(|event| {
        json!({
            "name": event.name,
            "cat": event.kind,
            "ph": "X",
            "ts": event.start.as_nanos() as f64 / 1e3,
            "dur": event.length.as_nanos() as f64 / 1e3,
            "pid": 1,
            "tid": event.thread,
        })
    });
    json!({"displayTimeUnit": "ms", "traceEvents": events.collect::<Vec<_>>()})
}

/// Makes spans of modules, which lie within one another.
#[derive(Default)]
pub(crate) struct ModuleSpans(Mutex<Vec<Span>>);

impl ModuleSpans {
    fn enter(&self, kind: &'static str, module: &ModulePath) {
        let span = profile::span(kind, || match module.as_str() {
            "" => "model".to_owned(),
            path => path.to_owned(),
        });
        self.spans().push(span);
    }

    fn exit(&self) {
        drop(self.spans().pop());
    }

    fn spans(&self) -> std::sync::MutexGuard<'_, Vec<Span>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
