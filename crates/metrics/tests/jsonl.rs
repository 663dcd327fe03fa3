//! The record on disk: written a line at a time, cut back to a checkpoint, never half a row.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use tt_metrics::{
    End, Error, Jsonl, Metrics, Record, RunInfo, Sink, SinkResult, StepRecord, Summary, Truncation,
    ValRecord,
};

fn step(step: u64) -> Record {
    let loss = 1.0 / step as f32;
    Record::Step(StepRecord {
        step,
        loss,
        ..StepRecord::default()
    })
}

fn val(step: u64) -> Record {
    Record::Val(ValRecord {
        step,
        val_loss: 0.5,
        ..ValRecord::default()
    })
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    (dir, path)
}

/// Steps 1 to 6 and a validation at 3.
fn six_steps(path: &Path) {
    let mut jsonl = Jsonl::create(path).unwrap();
    for i in 1..=6 {
        jsonl.write(&step(i)).unwrap();
        if i == 3 {
            jsonl.write(&val(i)).unwrap();
        }
    }
}

#[test]
fn each_row_is_on_disk_when_write_returns() {
    let (_dir, path) = file();
    let mut jsonl = Jsonl::create(&path).unwrap();
    for i in 1..=3 {
        jsonl.write(&step(i)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count() as u64, i);
        assert!(text.ends_with('\n'));
        assert_eq!(jsonl.position(), text.len() as u64);
    }
}

#[test]
fn resumed_file_equals_one_never_interrupted() {
    let (_dir, path) = file();
    six_steps(&path);
    let uninterrupted = fs::read_to_string(&path).unwrap();
    // Killed after the rows of step 5 and within that of step 6.
    fs::write(&path, &uninterrupted[..uninterrupted.len() - 10]).unwrap();

    let (mut jsonl, truncation) = Jsonl::resume(&path, 3).unwrap();
    assert_eq!(
        truncation,
        Truncation {
            rows_kept: 4,
            rows_dropped: 2,
            steps_dropped: 2,
            rows_damaged: 1
        }
    );
    for i in 4..=6 {
        jsonl.write(&step(i)).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), uninterrupted);
}

#[test]
fn steps_dropped_are_counted_without_their_validation_rows() {
    let (_dir, path) = file();
    six_steps(&path);
    let (_, truncation) = Jsonl::resume(&path, 2).unwrap();
    assert_eq!((truncation.rows_dropped, truncation.steps_dropped), (5, 4));
}

#[test]
fn whole_last_line_without_its_newline_counts_as_half_written() {
    let (_dir, path) = file();
    six_steps(&path);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.trim_end()).unwrap();
    let (jsonl, truncation) = Jsonl::resume(&path, 6).unwrap();
    assert_eq!((truncation.rows_kept, truncation.rows_damaged), (6, 1));
    assert_eq!(jsonl.position(), fs::metadata(&path).unwrap().len());
}

#[test]
fn zeros_left_by_a_power_cut_are_dropped() {
    let (_dir, path) = file();
    six_steps(&path);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0; 100]);
    fs::write(&path, bytes).unwrap();
    let (_, truncation) = Jsonl::resume(&path, 100).unwrap();
    assert_eq!((truncation.rows_kept, truncation.rows_damaged), (7, 1));
    assert!(!fs::read(&path).unwrap().contains(&0));
}

#[test]
fn whole_file_is_left_as_it_is() {
    let (_dir, path) = file();
    six_steps(&path);
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let (_, truncation) = Jsonl::resume(&path, 6).unwrap();
    assert_eq!(truncation.rows_kept, 7);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[test]
fn resume_without_a_file_starts_one() {
    let (_dir, path) = file();
    let (mut jsonl, truncation) = Jsonl::resume(&path, 3).unwrap();
    assert_eq!(truncation, Truncation::default());
    jsonl.write(&step(4)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
}

#[test]
fn create_begins_anew() {
    let (_dir, path) = file();
    six_steps(&path);
    let jsonl = Jsonl::create(&path).unwrap();
    assert_eq!(jsonl.position(), 0);
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn unwritable_path_is_named() {
    let (_dir, path) = file();
    fs::write(&path, "").unwrap();
    let error = Jsonl::create(&path.join("metrics.jsonl")).unwrap_err();
    assert!(
        error.to_string().contains("metrics.jsonl/metrics.jsonl"),
        "{error}"
    );
}

/// A file system of 16 kB, if this user may mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
            .arg(dir.path())
            .status();
        status.is_ok_and(|s| s.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn full_disk_is_an_error_and_leaves_whole_rows() {
    let Some(disk) = SmallDisk::mount() else {
        return eprintln!("skipped: this user may not mount a file system");
    };
    let path = disk.0.path().join("metrics.jsonl");
    let mut jsonl = Jsonl::create(&path).unwrap();
    let error = (1..1000).find_map(|i| jsonl.write(&step(i)).err()).unwrap();
    assert!(
        matches!(
            error,
            Error::Disk(tt_disk::Error::Io {
                action: "write",
                ..
            })
        ),
        "{error}"
    );

    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.len() as u64, jsonl.position());
    assert!(text.ends_with('\n'));
}

/// What it is told, in words.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn push(&self, text: impl Into<String>) -> SinkResult {
        self.0.lock().unwrap().push(text.into());
        Ok(())
    }

    fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Sink for Recorder {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        self.push(format!("start {} at {}", run.id, run.step))
    }

    fn rewound(&mut self, step: u64, position: u64) -> SinkResult {
        self.push(format!("back to {step}@{position}"))
    }

    fn record(&mut self, record: &Record, position: u64) -> SinkResult {
        self.push(format!("{}@{position}", record.step()))
    }

    fn message(&mut self, text: &str) -> SinkResult {
        self.push(text)
    }

    fn finish(&mut self, end: &End) -> SinkResult {
        self.push(format!("{end:?}"))
    }
}

#[test]
fn sinks_get_each_row_after_it_is_on_disk() {
    let (_dir, path) = file();
    let recorder = Recorder::default();
    let mut metrics = Metrics::new(Jsonl::create(&path).unwrap()).with(recorder.clone());
    metrics.log(step(1)).unwrap();
    let first = fs::metadata(&path).unwrap().len();
    metrics.message("note");
    metrics.log(val(1)).unwrap();
    let second = fs::metadata(&path).unwrap().len();
    metrics.finish(&End::Finished).unwrap();
    assert_eq!(
        recorder.seen(),
        [
            format!("1@{first}"),
            "note".into(),
            format!("1@{second}"),
            "Finished".into()
        ]
    );
}

#[test]
fn sinks_are_told_which_run_it_is_and_of_rows_taken_back() {
    let (_dir, path) = file();
    let run = |step| RunInfo {
        id: "k3v8x0qa".to_owned(),
        step,
        ..RunInfo::default()
    };
    let mut metrics = Metrics::new(Jsonl::create(&path).unwrap());
    metrics.start(&run(0), Truncation::default());
    for i in 1..=3 {
        metrics.log(step(i)).unwrap();
    }
    metrics.finish(&End::Stopped).unwrap();

    // From the checkpoint of step 2; then from where the file ends, which takes back nothing.
    for (from, told) in [(2, true), (2, false)] {
        let (jsonl, truncation) = Jsonl::resume(&path, from).unwrap();
        let position = jsonl.position();
        let recorder = Recorder::default();
        let mut metrics = Metrics::new(jsonl).with(recorder.clone());
        metrics.start(&run(from), truncation);
        metrics.finish(&End::Stopped).unwrap();
        let back = told.then(|| format!("back to 2@{position}"));
        let start = ["start k3v8x0qa at 2".to_owned()].into_iter();
        let expected: Vec<_> = start.chain(back).chain(["Stopped".to_owned()]).collect();
        assert_eq!(recorder.seen(), expected);
    }
}

#[test]
fn a_sink_that_fails_is_dropped_with_one_warning_and_the_run_goes_on() {
    /// Fails at the second record, in one way or the other.
    struct Failing {
        panics: bool,
    }
    impl Sink for Failing {
        fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
            match record.step() {
                1 => Ok(()),
                2 if self.panics => panic!("as it was asked to"),
                2 => Err("the server is gone".into()),
                step => unreachable!("told of step {step}"),
            }
        }

        fn finish(&mut self, _end: &End) -> SinkResult {
            unreachable!("told of the end")
        }
    }
    for (panics, why) in [(false, "the server is gone"), (true, "it panicked")] {
        let (_dir, path) = file();
        let recorder = Recorder::default();
        let mut metrics = Metrics::new(Jsonl::create(&path).unwrap())
            .with_named("mine", Box::new(Failing { panics }))
            .with(recorder.clone());
        for i in 1..=4 {
            metrics.log(step(i)).unwrap();
        }
        metrics.finish(&End::Finished).unwrap();
        let warning = format!(
            "warning: logging.sinks.mine: {why}; it gets nothing more of this run, metrics.jsonl has it all"
        );
        let seen = recorder.seen();
        let warnings = seen.iter().filter(|text| text.starts_with("warning"));
        assert_eq!(warnings.collect::<Vec<_>>(), [&warning]);
        assert_eq!(seen.len(), 6);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
    }
}

#[test]
fn a_run_that_nobody_has_ended_has_failed() {
    let (_dir, path) = file();
    let recorder = Recorder::default();
    drop(Metrics::new(Jsonl::create(&path).unwrap()).with(recorder.clone()));
    assert_eq!(recorder.seen(), [r#"Failed("ended before it was done")"#]);
}

#[test]
fn summary_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("summary.json");
    fs::write(&path, "old").unwrap();
    let mut summary = Summary {
        final_val_loss: Some(0.3),
        checkpoint: Some("outputs/step-00000010".into()),
        ..Summary::default()
    };
    summary.scalars.insert("bigram_nats".into(), 2.5f64.into());
    summary.write(&path).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        r#"{
  "final_val_loss": 0.3,
  "unigram_nats": null,
  "steps": null,
  "tokens": null,
  "train_loss": null,
  "wall_time_seconds": null,
  "checkpoint": "outputs/step-00000010",
  "tokens_per_second": null,
  "peak_rss_bytes": null,
  "bigram_nats": 2.5
}
"#
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
