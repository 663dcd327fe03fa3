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
        "trainer.sample_interval=25",
        "logging.histogram_interval=25",
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
    // What is no number.
    let history = lines(&stored, "history");
    let parameter = "model.layers.0.self_attn.o_proj.weight";
    for of in ["gradients", "parameters"] {
        let key = format!("{of}/{parameter}");
        assert!(history[23][&key].is_null() && history[24][&key].is_object());
    }
    let sample = &history[24]["samples"];
    let plot = &history[49]["plots/loss"];
    for media in [sample, plot] {
        let name = media["path"].as_str().expect("a path");
        assert_eq!(stored["uploads"][name]["sha256"], media["sha256"]);
    }
    // From the first line to those after the end of training.
    let output = stored["output"].as_array().unwrap();
    for text in ["run folder ", "report.html"] {
        let has = |line: &Value| line.as_str().unwrap().contains(text);
        assert!(output.iter().any(has), "{text}: {output:?}");
    }
    // In the folder are the configs, environment.json, the console log, the W&B log and its files.
    assert_eq!(holds(place.path(), KEY), None);
    let basic = "YXBpOjVlYzJlNz"; // as it is in the header
    assert_eq!(holds(place.path(), basic), None);
    assert!(!finished.stdout.contains(KEY) && !finished.stderr.contains(KEY));
    assert!(!stored.to_string().contains(KEY));
}

#[test]
fn a_run_that_is_stopped_on_the_site_saves_and_ends() {
    let (place, server) = (Place::new(), Server::start("--stop"));
    run(&place, &server, &nano(&["trainer.max_steps=100000"]))
        .with_code(130)
        .prints("Stop was pressed on the site");
    let rows = place.run_folder().rows();
    let last = rows.last().expect("a row")["step"].as_u64().expect("steps");
    let checkpoints = place.run_folder().join("checkpoints");
    let saved = tt_checkpoint::latest(&checkpoints).expect("readable");
    assert_eq!(saved.checkpoint.expect("a checkpoint").step(), last);
    let stored = server.run();
    assert_eq!(steps(&stored).last(), Some(&last));
    assert_eq!(stored["preempting"], true);
}

#[test]
fn a_bad_step_raises_an_alert_and_what_is_said_of_it_is_an_error() {
    let (place, server) = (Place::new(), Server::start(""));
    let args = nano(&[
        "lr=1e30",
        "trainer.lr_scheduler.num_warmup_steps=0",
        "trainer.max_steps=4",
        "trainer.bad_steps.action=skip",
        "trainer.bad_steps.max_consecutive=2",
        "logging.progress=json",
    ]);
    run(&place, &server, &args).with_code(1);
    let requests = server.requests();
    let raised = requests
        .iter()
        .filter(|it| it["op"] == "NotifyScriptableRunAlert")
        .map(|it| &it["body"]["variables"]);
    let raised: Vec<_> = raised.map(|it| (&it["title"], &it["severity"])).collect();
    let expected = [
        ("Step skipped", "WARN"),
        ("Run ended by a bad step", "ERROR"),
    ];
    let expected = expected.map(|(title, level)| (json!(title), json!(level)));
    assert_eq!(raised, expected.each_ref().map(|(a, b)| (a, b)));
    let stored = server.run();
    let output = stored["output"].as_array().unwrap().iter();
    let (errors, others): (Vec<_>, Vec<_>) = output
        .map(|line| line.as_str().unwrap())
        .partition(|line| line.starts_with("ERROR "));
    assert!(
        errors.iter().any(|line| line.contains("skipped step 2")),
        "{errors:?}"
    );
    assert!(
        others.iter().any(|line| line.contains("step=1/4")),
        "{others:?}"
    );
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
