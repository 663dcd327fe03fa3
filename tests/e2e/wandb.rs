//! Runs of the binary, and what a W&B server has of them. What the sink does under faults is in `crates/metrics/tests`.

#[path = "../wandb/server.rs"]
mod server;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Finished, Place, Running, entries, nano};
use server::{Server, lines};

const KEY: &str = "5ec2e70123456789012345678901234567890123";

fn tracked(place: &Place, server: &Server, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command
        .env_remove("WANDB_MODE")
        .env("WANDB_BASE_URL", &server.url)
        .env("WANDB_API_KEY", KEY);
    command
}

fn run(place: &Place, server: &Server, args: &[&str]) -> Finished {
    Running::start(tracked(place, server, args)).finish()
}

#[track_caller]
fn steps(run: &Value) -> Vec<u64> {
    let history = lines(run, "history");
    let steps = history.iter().map(|line| line["_step"].as_u64());
    steps.map(|step| step.expect("a step")).collect()
}

/// Whether a file in or below a folder holds a text.
fn holds(folder: &Path, text: &str) -> Option<String> {
    entries(folder).iter().find_map(|path| {
        if path.is_dir() && !path.is_symlink() {
            return holds(path, text);
        }
        let bytes = std::fs::read(path).unwrap_or_default();
        let mut windows = bytes.windows(text.len());
        windows
            .any(|window| window == text.as_bytes())
            .then(|| path.display().to_string())
    })
}

#[test]
fn a_run_is_tracked_where_a_key_is_found_and_the_key_stays_hidden() {
    let (place, server) = (Place::new(), Server::start(""));
    let more = [
        "trainer.max_steps=50",
        "trainer.eval_interval=25",
        "notes=why",
        "debug=true",
    ];
    let finished = run(&place, &server, &nano(&more))
        .with_code(0)
        .prints("WANDB_MODE=disabled turns it off")
        .prints("/mock-entity/tpu-train/runs/");
    let folder = place.run_folder();
    let stored = server.run();
    assert_eq!(steps(&stored), (1..=50).collect::<Vec<_>>());
    assert_eq!(stored["anomalies"], json!([]));
    assert_eq!(stored["name"], folder.read("run_id").trim());
    assert_eq!(
        (&stored["complete"], &stored["exitcode"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(stored["meta"]["notes"], "why");
    let resolved = folder.json("resolved_config.json");
    for (key, value) in resolved.as_object().unwrap() {
        if key != "hydra" {
            assert_eq!(stored["config"][key], json!({"value": value}), "{key}");
        }
    }
    // The same numbers, to the digit.
    for (line, row) in lines(&stored, "history").iter().zip(folder.rows()) {
        if line["_step"] == row["step"] {
            assert_eq!(line["loss"], row["loss"]);
        }
    }
    assert!(lines(&stored, "history")[24]["val_loss"].is_number());
    let output = stored["output"].as_array().unwrap();
    assert!(
        output
            .iter()
            .any(|line| line.as_str().unwrap().contains("run folder "))
    );
    // In the folder are the configs, environment.json, the console log, the W&B log and its files.
    assert_eq!(holds(place.path(), KEY), None);
    let basic = "YXBpOjVlYzJlNz"; // as it is in the header
    assert_eq!(holds(place.path(), basic), None);
    assert!(!finished.stdout.contains(KEY) && !finished.stderr.contains(KEY));
    assert!(!stored.to_string().contains(KEY));
}

#[test]
fn a_run_that_was_killed_goes_on_as_one() {
    let (place, server) = (Place::new(), Server::start(""));
    let args = nano(&["trainer.max_steps=300", "trainer.checkpoint_interval=50"]);
    let mut running = Running::start(tracked(&place, &server, &args));
    running.wait_until(|| !place.run_folders().is_empty());
    running.wait_for_rows(&place.run_folder(), 130);
    running.kill();
    run(&place, &server, &args)
        .with_code(0)
        .prints("made again");
    let stored = server.run();
    assert_eq!(steps(&stored), (1..=300).collect::<Vec<_>>());
    assert_eq!(stored["anomalies"], json!([]));
    assert_eq!(stored["exitcode"], 0);
    // Both processes made steps 101 to 130, and agree on them.
    let losses = |rows: Vec<Value>| {
        rows.into_iter()
            .map(|row| row["loss"].clone())
            .collect::<Vec<_>>()
    };
    let rows = place
        .run_folder()
        .rows()
        .into_iter()
        .filter(|row| row.get("loss").is_some());
    assert_eq!(losses(lines(&stored, "history")), losses(rows.collect()));
}

#[test]
fn an_offline_run_is_sent_by_sync() {
    let (place, server) = (Place::new(), Server::start(""));
    let args = nano(&[
        "trainer.max_steps=20",
        "logging=wandb",
        "logging.sinks.wandb.kwargs.mode=offline",
    ]);
    let mut command = tracked(&place, &server, &args);
    command
        .env("WANDB_MODE", "online")
        .env_remove("WANDB_API_KEY")
        .env("HOME", place.path());
    Running::start(command)
        .finish()
        .with_code(0)
        .prints("offline (kwargs.mode)")
        .prints("tpu-train sync");
    assert_eq!(server.state()["runs"], json!([]));
    let mut without = tracked(&place, &server, &["sync"]);
    without
        .env_remove("WANDB_API_KEY")
        .env("HOME", place.path());
    Running::start(without)
        .finish()
        .with_code(2)
        .complains("WANDB_API_KEY");
    run(&place, &server, &["sync"])
        .with_code(0)
        .prints("sent 20 rows");
    run(&place, &server, &["sync"])
        .with_code(0)
        .prints("sent before");
    let folder = place.run_folder();
    run(&place, &server, &["sync", folder.0.to_str().unwrap()]).with_code(0);
    assert_eq!(steps(&server.run()), (1..=20).collect::<Vec<_>>());
    run(&place, &server, &["sync", "nowhere"])
        .with_code(2)
        .complains("nowhere holds no W&B log");
}

#[test]
fn the_jobs_of_a_sweep_are_a_group() {
    let (place, server) = (Place::new(), Server::start(""));
    let args = nano(&[
        "-m",
        "lr=1e-3,1e-4",
        "trainer.max_steps=2",
        "hydra.sweep.dir=sweeps/mine",
    ]);
    run(&place, &server, &args).with_code(0);
    let runs = server.state()["runs"].as_array().unwrap().clone();
    let groups: Vec<_> = runs.iter().map(|run| &run["meta"]["groupName"]).collect();
    assert_eq!(groups, ["sweeps/mine", "sweeps/mine"]);
}
