//! A data source and a sink of one's own, in a program of one's own.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tpu_train::data::{DataConfig, DataError, Dataset, Location, Row, Source, typed_kwargs};
use tpu_train::metrics::{End, Record, RunInfo, Sink, SinkResult};
use tpu_train::{App, Entry};

use crate::harness::{Place, nano};

/// `data.dataset.kwargs`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Counting {
    /// What is counted.
    what: String,
    #[serde(skip)]
    first: u64,
}

impl Source for Counting {
    fn num_rows(&self) -> Option<u64> {
        Some(500)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let (source, number) = ("counting", self.first + index);
        row.at = Location::Generated { source, index };
        let text = format!("{number} {}, and one more makes {}.", self.what, number + 1);
        row.text_mut("text").push_str(&text);
        Ok(())
    }
}

fn open_counting(config: &DataConfig) -> Result<Dataset, DataError> {
    let open = |first| -> Result<Arc<dyn Source>, DataError> {
        let counting: Counting = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
        Ok(Arc::new(Counting { first, ..counting }))
    };
    Ok(Dataset {
        train: open(0)?,
        validation: open(500)?,
        fingerprint: "counting".to_owned(),
    })
}

/// `logging.sinks.NAME.kwargs`: writes what it is told, a line each.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Diary {
    path: PathBuf,
    /// The step at which it fails.
    fails_at: Option<u64>,
}

impl Diary {
    fn write(&self, line: String) -> SinkResult {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.append(true).create(true).open(&self.path)?;
        Ok(writeln!(file, "{line}")?)
    }
}

impl Sink for Diary {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        assert!(run.dir.join("metrics.jsonl").is_file());
        assert_eq!(run.config["lr"], 0.002);
        let (name, project) = (run.name.as_deref(), run.project.as_deref());
        let step = run.step;
        self.write(format!("start {} {name:?} {project:?} at {step}", run.id))
    }

    fn rewound(&mut self, step: u64, _position: u64) -> SinkResult {
        self.write(format!("back to {step}"))
    }

    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        if self.fails_at == Some(record.step()) {
            return Err("out of ink".into());
        }
        match record {
            Record::Step(step) => self.write(format!("step {}", step.step)),
            Record::Val(val) => self.write(format!("validation {}", val.step)),
        }
    }

    fn finish(&mut self, end: &End) -> SinkResult {
        self.write(format!("{end:?}"))
    }
}

const COUNTING_YAML: &str = "\
dataset:
  url: counting
  kwargs:
    what: sheep
sequence_length: 32
tokenizer:
  vocab_size: 300
";

/// Trains on what `counting` gives, telling the diary in `place`.
fn train(place: &Place, more: &[&str]) -> ExitCode {
    let path = |name: &str| place.path().join(name).display().to_string();
    let (run, diary) = (path("run"), path("diary"));
    let own = [
        format!("hydra.run.dir={run}"),
        "data=counting".to_owned(),
        // In this process, whose environment has whatever keys a developer has.
        "+logging.sinks.wandb={type: wandb.Wandb, kwargs: {mode: disabled}}".to_owned(),
        format!("+logging.sinks.diary={{type: diary.Diary, kwargs: {{path: '{diary}'}}}}"),
        "name=flock".to_owned(),
        "lr=0.002".to_owned(),
        "trainer.checkpoint_interval=2".to_owned(),
        "trainer.max_steps=4".to_owned(),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let args = nano(&[&own[..], more].concat());
    App::new()
        .with_source(Entry::new::<Counting>(
            "counting",
            "numbers, counted up",
            open_counting,
        ))
        .with_sink(Entry::new::<Diary>(
            "diary.Diary",
            "a line for each event",
            |kwargs| Ok(Box::new(kwargs.extract::<Diary>()?)),
        ))
        .with_configs(&[("data/counting.yaml", COUNTING_YAML)])
        .run(args.into_iter().map(Into::into))
}

#[track_caller]
fn succeeds(code: ExitCode) {
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
}

fn diary(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.path().join("diary")).expect("a diary");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_source_and_a_sink_of_ones_own_go_with_a_run_and_its_resume() {
    let place = Place::new();
    succeeds(train(&place, &[]));
    let run = place.path().join("run");
    let id = std::fs::read_to_string(run.join("run_id")).expect("an id");
    let start = format!("start {} Some(\"flock\") Some(\"tpu-train\") at", id.trim());
    let first = diary(&place);
    assert_eq!(first[0], format!("{start} 0"));
    let steps = ["step 1", "step 2", "step 3", "step 4"];
    assert_eq!(first[1..5], steps);
    assert_eq!(first[5..], ["validation 4", "Finished"]);
    assert!(!run.join("wandb").exists(), "nothing is sent from here");
    assert!(!run.join("histograms.jsonl").exists(), "nobody asked");
    let vocabulary = std::fs::read_to_string(run.join("tokenizer/tokenizer.json")).unwrap();
    assert!(vocabulary.contains("sheep"), "trained on the source");

    // As if it had been killed before the last checkpoint.
    std::fs::remove_dir_all(run.join("checkpoints/step-00000004")).unwrap();
    std::fs::remove_file(run.join("summary.json")).unwrap();
    succeeds(train(&place, &[]));
    assert_eq!(diary(&place)[..7], first);
    let rewound = [
        &format!("{start} 2"),
        "back to 2",
        "step 3",
        "step 4",
        "validation 4",
        "Finished",
    ];
    assert_eq!(diary(&place)[7..], rewound);
}

#[test]
fn a_sink_that_fails_does_not_end_the_run() {
    let place = Place::new();
    succeeds(train(&place, &["+logging.sinks.diary.kwargs.fails_at=2"]));
    let diary = diary(&place);
    assert_eq!(diary.len(), 2, "{diary:?}");
    assert_eq!(diary[1], "step 1");
    let rows = std::fs::read_to_string(place.path().join("run/metrics.jsonl")).unwrap();
    let rows = rows.lines().map(serde_json::from_str::<Value>);
    let steps = rows.filter(|row| row.as_ref().is_ok_and(|row| row["loss"].is_number()));
    assert_eq!(steps.count(), 4);
}

#[test]
fn sources_and_sinks_are_listed_and_their_options_checked() {
    let place = Place::new();
    let listing = place.run(&["--info", "plugins"]).with_code(0).stdout;
    for line in [
        "data.dataset.url:",
        "  stories",
        "logging.sinks.NAME.type:",
        "  console.Console",
    ] {
        assert!(listing.contains(line), "no {line:?} in {listing}");
    }
    let wrong = [
        (
            "+logging.sinks.x.type=wandb.Sink",
            "unknown sink `wandb.Sink`",
        ),
        (
            "+logging.sinks.x={type: console.Console, kwargs: {progres: lines}}",
            "unknown key `progres` for sink `console.Console`",
        ),
        ("data.dataset.url=storys", "unknown data set `storys`"),
    ];
    for (argument, message) in wrong {
        let errors = place.run_nano(&[argument]).with_code(2).stderr;
        assert!(errors.contains(message), "no {message:?} in {errors}");
    }
}

#[test]
fn another_console_takes_the_place_of_the_usual_one() {
    let place = Place::new();
    let silent = "+logging.sinks.console={type: console.Console, kwargs: {progress: none}}";
    let out = place
        .run_nano(&[silent, "trainer.max_steps=1"])
        .with_code(0);
    assert!(!out.stdout.contains("step 1/1"), "{}", out.stdout);
}
