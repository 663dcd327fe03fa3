//! `my-sink +model=qwen2 +trainer=lm logging=csv`: the losses as a table, too.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use tpu_train::metrics::{BuildSink, Record, RunInfo, Sink, SinkResult};
use tpu_train::{App, Entry};

/// `logging.sinks.NAME.kwargs`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Csv {
    /// Where to write; a relative path is in the folder of the run.
    path: PathBuf,
}

impl Csv {
    fn write(&self, line: &str) -> SinkResult {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)?;
        Ok(writeln!(file, "{line}")?)
    }
}

impl Sink for Csv {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        self.path = run.dir.join(&self.path);
        self.write(if run.step == 0 {
            "step,loss"
        } else {
            "# goes on"
        })
    }

    fn rewound(&mut self, step: u64, _position: u64) -> SinkResult {
        self.write(&format!("# what came after step {step} is made again"))
    }

    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        match record {
            Record::Step(step) => self.write(&format!("{},{}", step.step, step.loss)),
            Record::Val(_) => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let build: BuildSink = |kwargs| Ok(Box::new(kwargs.extract::<Csv>()?));
    let entry = Entry::new::<Csv>("csv.Csv", "losses as a table", build);
    const YAML: &str = "{defaults: [default, _self_],
      sinks: {table: {type: csv.Csv, kwargs: {path: losses.csv}}}}";
    let app = App::new()
        .with_sink(entry)
        .with_configs(&[("logging/csv.yaml", YAML)]);
    app.run(std::env::args_os().skip(1))
}
