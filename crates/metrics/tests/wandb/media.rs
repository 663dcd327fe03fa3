//! What is no number: histograms, samples, images, alerts; and the wish of somebody at the site that the run end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tt_metrics::{Alert, AlertLevel, End, Histogram, Image, Metrics, Sample};

use crate::server::{Server, lines};
use crate::{Run, row};

/// Of 3 by 2 pixels, as far as its head tells.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x02";

/// A step with all that may go with it: samples in every third.
pub fn log(metrics: &mut Metrics, step: u64) {
    let values = [step as f32, f32::NAN, -1.0, f32::INFINITY];
    let histogram = Histogram::of("gradients/model.a.weight", &values);
    metrics.histograms(step, vec![histogram]).unwrap();
    metrics.log(row(step)).unwrap();
    for nth in (0..2).filter(|_| has_samples(step)) {
        let sample = Sample {
            step,
            prompt: format!("{nth}"),
            continuation: " \"ä\"\n".to_owned(),
        };
        metrics.sample(&sample).unwrap();
    }
}

fn has_samples(step: u64) -> bool {
    step.is_multiple_of(3)
}

pub fn show(metrics: &mut Metrics) {
    metrics.image(&Image {
        name: "plots/loss".to_owned(),
        png: PNG.to_vec(),
    });
}

pub fn alert(title: &str) -> Alert {
    Alert {
        title: title.to_owned(),
        text: "the loss is NaN".to_owned(),
        level: AlertLevel::Error,
    }
}

/// The server has, of each step, its histogram and its table if it has one, whose file has arrived and says what it should; and of the
/// last one the image.
#[track_caller]
pub fn assert_media(run: &Value, num_steps: u64) {
    let history = lines(run, "history");
    assert_eq!(history.len() as u64, num_steps);
    let is_there = |media: &Value| {
        let name = media["path"].as_str().unwrap();
        let upload = &run["uploads"][name];
        assert_eq!(upload["sha256"], media["sha256"], "{name}");
        assert_eq!(upload["bytes"], media["size"], "{name}");
        let marks = run["uploaded_marks"].as_array().unwrap();
        assert!(marks.iter().any(|mark| mark == name), "{name}: {marks:?}");
    };
    for (line, step) in history.iter().zip(1..) {
        let histogram = &line["gradients/model.a.weight"];
        assert_eq!(histogram["_type"], "histogram", "{line}");
        let bins = histogram["bins"].as_array().unwrap();
        let values = histogram["values"].as_array().unwrap();
        assert_eq!((bins.len(), values.len()), (65, 64));
        assert_eq!(bins[0].as_f64(), Some(-1.0));
        assert_eq!(bins[64].as_f64(), Some(step as f64));
        assert_eq!((&values[0], &values[63]), (&json!(1), &json!(1)));
        let table = &line["samples"];
        assert_eq!(table.is_object(), has_samples(step), "{line}");
        if !has_samples(step) {
            continue;
        }
        assert_eq!(table["_type"], "table-file", "{line}");
        assert_eq!((&table["ncols"], &table["nrows"]), (&json!(3), &json!(2)));
        is_there(table);
    }
    let image = &history[num_steps as usize - 1]["plots/loss"];
    assert_eq!((&image["width"], &image["height"]), (&json!(3), &json!(2)));
    assert_eq!(image["_type"], "image-file");
    is_there(image);
    assert_eq!(run["summary"]["plots/loss"], *image);
    assert_eq!(run["anomalies"], json!([]));
}

/// The titles of the alerts that were raised.
pub fn alerts(server: &Server) -> Vec<Value> {
    let requests = server.requests().into_iter();
    let alerts = requests.filter(|it| it["op"] == "NotifyScriptableRunAlert");
    alerts
        .map(|it| it["body"]["variables"]["title"].clone())
        .collect()
}

#[test]
fn histograms_tables_and_images_go_with_their_rows_also_over_a_rewind() {
    let server = Server::start("--fault-match upload --fail-first 1");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    (1..=3).for_each(|step| log(&mut metrics, step));
    drop(metrics);
    // From the checkpoint of step 2: step 3 is made again.
    let mut metrics = run.start(2);
    (3..=4).for_each(|step| log(&mut metrics, step));
    show(&mut metrics);
    metrics.finish(&End::Finished).unwrap();
    assert_media(&server.run(), 4);
    let warnings = run.messages();
    assert!(
        warnings.iter().all(|it| !it.contains("warning")),
        "{warnings:?}"
    );
}

#[test]
fn samples_of_a_step_that_is_logged_already_get_a_row_of_their_own() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    let histogram = Histogram::of("gradients/a", &[1.0]);
    metrics.histograms(1, vec![histogram]).unwrap();
    metrics.log(row(1)).unwrap();
    metrics.finish(&End::Stopped).unwrap();
    // All steps are done; what is left is to show what the model makes of a prompt.
    let mut metrics = run.start(1);
    let sample = Sample {
        step: 1,
        ..Sample::default()
    };
    metrics.sample(&sample).unwrap();
    show(&mut metrics);
    metrics.finish(&End::Finished).unwrap();
    let history = lines(&server.run(), "history");
    assert_eq!(history.len(), 2, "{history:?}");
    assert_eq!(history[1]["trainer/step"], 1);
    assert_eq!(history[1]["samples"]["nrows"], 1);
    // Which the first process has logged.
    assert!(history[0]["gradients/a"].is_object() && history[1]["gradients/a"].is_null());
    assert_eq!(history[1]["plots/loss"]["format"], "png");
}

#[test]
fn an_alert_is_raised_while_the_run_goes_on_and_once_for_its_kind() {
    let server = Server::start("--fault-match NotifyScriptableRunAlert --fail-first 1");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    metrics.log(row(1)).unwrap();
    for title in ["a", "b", "a", "a"] {
        metrics.alert(&alert(title));
    }
    let patience = Instant::now() + Duration::from_secs(30);
    while alerts(&server).len() < 3 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    metrics.finish(&End::Failed("of it".to_owned())).unwrap();
    // The first one was refused once.
    assert_eq!(alerts(&server), ["a", "a", "b"]);
    let requests = server.requests();
    let raised = requests
        .iter()
        .find(|it| it["op"] == "NotifyScriptableRunAlert");
    let variables = &raised.unwrap()["body"]["variables"];
    assert_eq!(variables["runName"], crate::RUN_ID);
    assert_eq!(variables["text"], "the loss is NaN");
    assert_eq!(variables["severity"], "ERROR");
}

/// A checkpoint of two files in `run`.
pub fn checkpoint(run: &Run) -> PathBuf {
    let dir = run.path().join("checkpoints/step-00000003");
    fs::create_dir_all(dir.join("trainer_state")).unwrap();
    fs::write(dir.join("model.safetensors"), "hello").unwrap();
    fs::write(dir.join("trainer_state/state.json"), "hello2").unwrap();
    dir
}

/// The server has the checkpoint of [`checkpoint`] as one version.
#[track_caller]
pub fn assert_artifact(server: &Server, run: &Run) {
    let artifacts = server.state()["artifacts"].clone();
    let artifacts = artifacts.as_object().unwrap();
    assert_eq!(artifacts.len(), 1, "{artifacts:?}");
    let artifact = artifacts.values().next().unwrap();
    assert_eq!(artifact["state"], "COMMITTED");
    let input = &artifact["input"];
    assert_eq!(input["artifactCollectionName"], "checkpoint-k3v8x0qa");
    assert_eq!(input["projectName"], "tpu-train");
    assert_eq!(input["runName"], crate::RUN_ID);
    let requests = server.requests();
    let manifest = requests
        .iter()
        .find(|it| it["path"].as_str().unwrap().ends_with("/manifest"))
        .unwrap();
    let manifest = &manifest["body"];
    let manifest: Value = match manifest.as_str() {
        Some(text) => serde_json::from_str(text).unwrap(),
        None => manifest.clone(),
    };
    let contents = manifest["contents"].as_object().unwrap();
    assert_eq!(contents.len(), 2, "{contents:?}");
    let file = &contents["trainer_state/state.json"];
    let path = run
        .path()
        .join("checkpoints/step-00000003/trainer_state/state.json");
    assert_eq!(file["ref"], format!("file://{}", path.display()));
    assert_eq!(
        (&file["size"], &file["digest"]),
        (&json!(6), &json!("boCcvaBzKsSEWRalkBb5VA=="))
    );
}

#[test]
fn checkpoints_are_artifacts_by_reference_where_that_is_asked_for() {
    let server = Server::start("--fault-match CommitArtifact --fail-first 1");
    let mut run = Run::new(&server.url);
    let complete = |run: &Run| {
        let mut metrics = run.start(0);
        metrics.log(row(1)).unwrap();
        metrics.checkpoint(3, &checkpoint(run));
        metrics.checkpoint(4, &run.path().join("checkpoints/removed"));
        metrics.finish(&End::Finished).unwrap();
    };
    complete(&run);
    assert_eq!(server.state()["artifacts"], json!({}));
    run.config.log_checkpoints = true;
    complete(&run);
    let said = run.messages().join("\n");
    assert!(
        said.contains("not told of") && said.contains("removed"),
        "{said}"
    );
    let state = server.state();
    let artifacts = state["artifacts"].as_object().unwrap();
    let committed = artifacts.values().filter(|it| it["state"] == "COMMITTED");
    assert_eq!(committed.count(), 1, "{artifacts:?}");
}

#[test]
fn stop_on_the_site_is_a_wish_to_stop() {
    let server = Server::start("--stop");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    let patience = Instant::now() + Duration::from_secs(30);
    while !metrics.wants_stop() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(metrics.wants_stop());
    metrics.log(row(1)).unwrap();
    metrics.finish(&End::Stopped).unwrap();
    let said = run.messages();
    let told = said.iter().filter(|text| text.contains("Stop was pressed"));
    assert_eq!(told.count(), 1, "{said:?}");
    assert_eq!(server.run()["preempting"], true);
}
