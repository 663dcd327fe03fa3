//! What arrives, under every fault, and when.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tt_metrics::End;

use crate::server::{Server, lines};
use crate::{Run, assert_rows, row, val};

const NUM_STEPS: u64 = 50;

/// Each of these is over before the run's end has waited for too long.
const FAULTS: &[(&str, &str)] = &[
    ("none", ""),
    ("500s", "--fault-match file_stream --fail-first 3"),
    (
        "500s at creation",
        "--fault-match UpsertBucket --fail-first 2",
    ),
    (
        "500s when asked",
        "--fault-match RunResumeStatus --fail-first 2",
    ),
    (
        "429 with Retry-After",
        "--fault-match file_stream --rate-limit-first 3 --retry-after 0.3",
    ),
    (
        "429 beyond a rate",
        "--rate-limit 3 --rate-window 0.5 --retry-after 0.2",
    ),
    (
        "connections dropped before",
        "--fault-match file_stream --drop 3",
    ),
    (
        "connections dropped after",
        "--fault-match file_stream --drop 3 --drop-mode after",
    ),
    (
        "the last one's answer lost",
        "--fault-match file_stream --fault-skip 1 --drop 2 --drop-mode after",
    ),
    (
        "creation's answer lost",
        "--fault-match UpsertBucket --drop 1 --drop-mode after",
    ),
    ("outage", "--outage 0.4:1.5"),
    ("outage without answers", "--outage 0.4:1.5 --outage-drop"),
    ("latency", "--delay-ms 300"),
    ("uploads fail", "--fault-match upload --fail-first 2"),
    (
        "a conflict at creation",
        "--fault-match UpsertBucket --fail-first 1 --fail-status 409",
    ),
];

#[test]
fn a_run_arrives_exactly_once_and_in_order_under_every_fault() {
    thread::scope(|scope| {
        for (name, options) in FAULTS {
            let arrives = move || {
                let server = Server::start(options);
                let run = Run::new(&server.url);
                run.complete(1, NUM_STEPS, &End::Finished);
                let stored = server.run();
                println!("{name}: {:?}", run.messages());
                assert_rows(&stored, NUM_STEPS);
                assert_eq!(stored["complete"], true);
                assert_eq!(stored["exitcode"], 0);
                for file in ["wandb-metadata.json", "config.yaml", "wandb-summary.json"] {
                    assert!(stored["uploads"][file].is_object(), "{file}: {stored}");
                }
                assert_eq!(stored["summary"]["_step"], NUM_STEPS);
                let failed = server.requests().iter().any(|it| it["fault"].is_string());
                assert_eq!(failed, !matches!(*name, "none" | "latency"));
            };
            thread::Builder::new()
                .name((*name).to_owned())
                .spawn_scoped(scope, arrives)
                .unwrap();
        }
    });
}

#[test]
fn a_run_is_sent_as_the_reference_client_sends_it() {
    let server = Server::start("--upload-header X-Key:a:b");
    let mut run = Run::new(&server.url).with_var("WANDB_TAGS", "a, b");
    run.config.group = Some("sweep".into());
    run.config.timing.system = 0.9;
    let mut metrics = run.start(0);
    for step in 1..=3 {
        metrics.log(row(step)).unwrap();
        metrics
            .log(val(step, [2.0, 1.0, 1.5][step as usize - 1]))
            .unwrap();
    }
    // Two samples of the system, and a silence that a heartbeat breaks.
    let patience = Instant::now() + Duration::from_secs(30);
    while Instant::now() < patience {
        thread::sleep(Duration::from_millis(50));
        let run = &server.state()["runs"][0];
        let num_events = run["events"].as_array().map_or(0, Vec::len);
        if num_events >= 2 && run["heartbeats"].as_u64() > Some(0) {
            break;
        }
    }
    metrics
        .finish(&End::Failed("as it was asked to".into()))
        .unwrap();

    let stored = server.run();
    let history = lines(&stored, "history");
    assert_eq!(history.len(), 3, "a step is one row");
    assert_eq!(history[1]["val_loss"], 1.0);
    assert!(
        history[1]["_timestamp"].as_f64().unwrap() > 1.7e9,
        "seconds"
    );
    assert!(history[1]["_runtime"].as_f64().unwrap() < 60.0);
    assert_eq!(
        stored["summary"]["val_loss"],
        json!({"min": 1.0, "last": 1.5})
    );
    assert_eq!(stored["meta"]["tags"], json!(["a", "b"]));
    assert_eq!(stored["meta"]["groupName"], "sweep");
    assert_eq!(stored["exitcode"], 1);
    assert_eq!(stored["config"]["model"], json!({"value": {"layers": 4}}));
    let own = &stored["config"]["_wandb"]["value"];
    assert!(own["t"].is_object());
    assert_eq!(own["m"][0], json!({"1": "trainer/step", "6": [3], "7": []}));
    assert_eq!(own["m"][1]["1"], "tokens");
    assert_eq!(
        own["m"][2],
        json!({"1": "val_loss", "5": 1, "6": [1, 3], "7": [1, 5]})
    );
    let events = lines(&stored, "events");
    assert!(events.len() >= 2, "{events:?}");
    assert!(events[0]["system.memory_percent"].is_number() || cfg!(not(target_os = "linux")));
    assert!(stored["heartbeats"].as_u64().unwrap() >= 1);
    let text: Vec<_> = run.messages();
    assert!(
        text.iter()
            .any(|it| it.contains("/mock-entity/tpu-train/runs/k3v8x0qa")),
        "{text:?}"
    );

    let requests = server.requests();
    let ops: Vec<_> = requests.iter().filter_map(|it| it["op"].as_str()).collect();
    assert_eq!(ops[..3], ["RunResumeStatus", "UpsertBucket", "file_stream"]);
    for request in &requests {
        let is_upload = request["op"] == "upload";
        assert_eq!(request["auth"].is_null(), is_upload, "{request}");
        if is_upload {
            assert_eq!(request["headers"]["x-key"], "a:b");
        } else {
            assert_eq!(request["auth"]["user"], "api");
        }
    }
    let create = &requests[1]["body"]["variables"];
    assert_eq!(create["entity"], Value::Null);
    assert_eq!(create["displayName"], Value::Null);
}

#[test]
fn a_run_is_complete_also_where_its_files_cannot_be_stored() {
    let server = Server::start("--fault-match upload --drop 1000");
    let mut run = Run::new(&server.url);
    run.config.timing.flush = 6.0;
    run.complete(1, 3, &End::Finished);
    let stored = server.run();
    assert_rows(&stored, 3);
    assert_eq!(stored["complete"], true);
    let said = run.messages().join("\n");
    assert!(said.contains("files not sent"), "{said}");
}

#[test]
fn a_run_that_may_go_on_is_preempting() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    run.complete(1, 3, &End::Stopped);
    let stored = server.run();
    assert_eq!(stored["preempting"], true);
    assert_eq!(stored["exitcode"], 75);
    assert_rows(&stored, 3);
}

#[test]
fn nan_and_infinity_arrive_as_bare_words() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    for (step, loss) in [(1, f32::NAN), (2, f32::INFINITY), (3, f32::NEG_INFINITY)] {
        let record = tt_metrics::StepRecord { loss, ..row(step) };
        metrics.log(record).unwrap();
    }
    metrics.finish(&End::Finished).unwrap();
    let stored = server.run();
    let history = stored["history"].as_array().unwrap().iter();
    let words = ["NaN", "Infinity", "-Infinity"];
    assert_eq!(history.len(), 3);
    for (line, word) in history.zip(words) {
        let line = line.as_str().unwrap();
        assert!(line.contains(&format!("\"loss\":{word},")), "{line}");
        assert!(!line.contains("non_finite"), "{line}");
    }
    assert_eq!(
        run.messages()
            .iter()
            .filter(|it| it.contains("warning"))
            .count(),
        0
    );
}

#[test]
fn batches_wait_for_their_time() {
    let server = Server::start("");
    let mut run = Run::new(&server.url);
    run.config.timing.stream = 0.6;
    run.complete(1, 100, &End::Finished);
    assert_rows(&server.run(), 100);
    let requests = server.requests();
    let streams: Vec<_> = requests
        .iter()
        .filter(|it| it["op"] == "file_stream")
        .collect();
    assert!(
        streams.len() <= 5,
        "{} requests in about a second",
        streams.len()
    );
}
