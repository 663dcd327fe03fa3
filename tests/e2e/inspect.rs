//! What is told of runs by what they have recorded.

use crate::harness::{Place, RunFolder, nano};

const SHORT: &[&str] = &["trainer.max_steps=1", "resume=none"];

fn trained(place: &Place, folder: &str, more: &[&str]) -> RunFolder {
    let dir = format!("hydra.run.dir={folder}");
    let mut args = SHORT.to_vec();
    args.push(&dir);
    args.extend(more);
    place.run_nano(&args).with_code(0);
    RunFolder(place.path().join(folder))
}

#[test]
fn inspect_of_two_runs_tells_each_difference_and_the_override_behind_it() {
    let place = Place::new();
    trained(&place, "a", &["lr=5e-4"]);
    place.write(
        "configs/trainer/lr_scheduler/late.yaml",
        "defaults: [cosine, _self_]
num_warmup_steps: 3
",
    );
    trained(&place, "b", &["trainer/lr_scheduler=late"]);
    let compared = place.run(&["inspect", "a", "b"]).with_code(0);
    let told = |key: &str| {
        let after = compared.stdout.split_once(&format!("\n{key}\n"));
        let (_, after) = after.unwrap_or_else(|| panic!("no {key} in:\n{}", compared.stdout));
        let mut lines = after.lines().map(str::to_owned);
        [lines.next().unwrap(), lines.next().unwrap()]
    };
    let [a, b] = told("lr");
    assert_eq!(a, "  A  0.0005  from argument lr=5e-4");
    assert!(
        b.starts_with("  B  0.001  from configs/default.yaml:"),
        "{b}"
    );
    let [a, _] = told("trainer.optimizer.kwargs.lr");
    assert!(
        a.contains("adamw.yaml") && a.contains("-> argument lr=5e-4"),
        "{a}"
    );
    let [_, b] = told("trainer.lr_scheduler.num_warmup_steps");
    assert!(
        b.contains("chosen by `trainer/lr_scheduler=late` on the command line"),
        "{b}"
    );
    assert!(
        b.starts_with("  B  3  from configs/trainer/lr_scheduler/late.yaml:2:"),
        "{b}"
    );
    let first = compared.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("A  a  ") && first.contains("+model=qwen2"),
        "{first}"
    );
    assert!(!compared.stdout.contains("\nseed\n"), "{}", compared.stdout);
}

#[test]
fn inspect_of_a_run_tells_what_it_was_and_how_far_it_came() {
    let place = Place::new();
    trained(&place, "a", &[]);
    place
        .run(&["inspect", "a"])
        .with_code(0)
        .prints("a, finished")
        .prints("model=qwen2 model/size=nano")
        .prints("trainer.max_steps=1")
        .prints("at step 1\n")
        .prints("a/checkpoints/step-00000001");
    place
        .run(&["inspect", "a", "a"])
        .with_code(0)
        .prints("the configs are equal");
}

#[test]
fn inspect_of_a_run_on_several_ranks_tells_what_each_held() {
    let place = Place::new();
    let ranks = ["device.ranks=2", "model/sharding=zero1"];
    trained(&place, "a", &ranks);
    let plan = [&["plan", "--json"], &nano(&ranks)[..]].concat();
    let plan = place.run(&plan).with_code(0);
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    let bytes = |what: &str| plan["memory_bytes"][what].as_u64().unwrap();
    let shown = place.run(&["inspect", "a"]).with_code(0);
    let shown = shown
        .prints("ranks       2: fsdp 2\n")
        .prints("plan --experimental-rerun a ");
    place
        .run(&["plan", "--experimental-rerun", "a"])
        .with_code(0);
    let line = shown.stdout.lines().find(|it| it.starts_with("each holds"));
    let line = line.unwrap();
    for what in ["weights", "gradients", "optimizer"] {
        let size = format!("{:.0} kB", bytes(what) as f64 / 1e3);
        assert!(line.contains(&size), "{what} {size}: {line}");
    }
    // Where it stood is not where it stands: what cannot be read again does not keep the rest from being told.
    place.write("a/.hydra/config.yaml", "model: {type: gone.Model}\n");
    place
        .run(&["inspect", "a"])
        .with_code(0)
        .prints("what each held cannot be told: error: ")
        .prints("a, finished");
}

#[test]
fn what_is_no_run_folder_is_refused_by_name() {
    let place = Place::new();
    place.write("empty/note.txt", "");
    for (args, error) in [
        (
            &["inspect", "absent"][..],
            "error: there is no folder absent\n",
        ),
        (
            &["inspect", "empty"],
            "error: empty is not a run folder: it has no resolved_config.json\n",
        ),
        (
            &["inspect"],
            "error: inspect takes one run folder, or two to compare: tpu-train inspect RUN_A RUN_B\n",
        ),
        (
            &["inspect", "empty", "--cfg=job"],
            "error: `inspect` composes no config: it takes neither --cfg nor --info\n",
        ),
    ] {
        assert_eq!(place.run(args).with_code(2).stderr, error);
    }
}

/// A run of four steps whose rate was changed on purpose after two.
fn two_segments(place: &Place) -> RunFolder {
    let run = trained(place, "run", &["lr=5e-3"]);
    place
        .run_nano(&["trainer.max_steps=4", "resume=run", "lr=1e-3"])
        .with_code(0);
    run
}

#[test]
fn inspect_shows_what_each_start_of_a_run_asked_for() {
    let place = Place::new();
    two_segments(&place);
    let shown = place.run(&["inspect", "run"]).with_code(0).stdout;
    let lines: Vec<_> = shown
        .lines()
        .filter(|line| line.starts_with("steps"))
        .collect();
    let [first, second] = lines[..] else {
        panic!("{shown}");
    };
    assert!(
        first.contains(" 1-1  ") && first.ends_with("lr=5e-3"),
        "{first}"
    );
    assert!(
        second.contains(" 2-  ") && second.ends_with("lr=1e-3"),
        "{second}"
    );
    assert!(
        shown.contains("            lr: 0.005 -> 0.001\n"),
        "{shown}"
    );
}

#[test]
fn a_rerun_of_a_run_whose_config_changed_says_so_and_each_segment_can_be_made_again() {
    let place = Place::new();
    let run = two_segments(&place);
    let rerun = |of: &str, into: &str| {
        let into = format!("hydra.run.dir={into}");
        place.run(&["--experimental-rerun", of, &into]).with_code(0)
    };
    let warning = "ran under another config up to step 1: lr: 0.005 -> 0.001";
    rerun("run", "whole").complains(warning);
    let first = rerun("run/segments/001", "first");
    assert!(!first.stderr.contains("warning"), "{}", first.stderr);
    let again = RunFolder(place.path().join("first"));
    assert_eq!(again.timeless_rows()[0], run.timeless_rows()[0]);
}

#[test]
fn a_run_keeps_what_it_printed_on_both_streams_over_all_its_starts() {
    let place = Place::new();
    let run = two_segments(&place);
    let log = run.read("console.log");
    for printed in [
        "$ tpu-train +model=qwen2",
        "lr=1e-3\n",
        "resuming ",
        "step=4/4",
        "continue    ",
    ] {
        assert!(log.contains(printed), "no {printed} in:\n{log}");
    }
    assert_eq!(log.matches("$ tpu-train").count(), 2, "{log}");

    // An error that ends it, on standard error.
    let failed = place.run_nano(&["hydra.run.dir=bad", "lr=1e30", "trainer.max_steps=20"]);
    let failed = failed.with_code(1);
    let log = RunFolder(place.path().join("bad")).read("console.log");
    assert!(
        failed.stderr.contains("error: ") && log.contains(&failed.stderr),
        "{log}"
    );

    // A run is no worse without it.
    let folder = place.path().join("barred");
    std::fs::create_dir_all(folder.join("console.log")).expect("made");
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=barred"])
        .with_code(0)
        .complains("the run goes on without it");
}

#[test]
fn runs_are_listed_with_state_steps_losses_and_speed_in_the_order_asked_for() {
    let place = Place::new();
    trained(&place, "all/low", &["lr=0", "name=low"]);
    trained(&place, "all/deep/high", &["trainer.max_steps=3"]);
    let mut running = place.start_nano(&["hydra.run.dir=all/now", "trainer.max_steps=1000000"]);
    running.wait_for_rows(&RunFolder(place.path().join("all/now")), 1);
    let listed = place.run(&["runs", "all", "--sort", "val_loss", "--json"]);
    let listed = listed.with_code(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let of = |key: &str| -> Vec<_> {
        let runs = listed.as_array().expect("a list").iter();
        runs.map(|run| run[key].clone()).collect()
    };
    assert_eq!(of("run"), ["all/deep/high", "all/low", "all/now"]);
    assert_eq!(of("state"), ["finished", "finished", "running"]);
    assert_eq!(of("step")[..2], [3, 1]);
    assert_eq!(of("name")[1], "low");
    assert!(of("val_loss")[0].as_f64() < of("val_loss")[1].as_f64());
    assert!(of("tokens_per_second")[1].as_f64() > Some(0.0));
    running.kill();

    let table = place
        .run(&["runs", "all"])
        .with_code(0)
        .prints("unfinished")
        .stdout;
    let first: Vec<_> = table.lines().map(|line| line.split(' ').next()).collect();
    let expected = ["run", "all/deep/high", "all/low", "all/now"].map(Some);
    assert_eq!(first, expected, "{table}");
    place.run(&["runs"]).with_code(0).prints("no runs");
    place
        .run(&["runs", "nowhere"])
        .with_code(2)
        .complains("no folder nowhere");
}

#[test]
fn a_summary_has_steps_tokens_time_and_losses() {
    let place = Place::new();
    let run = trained(&place, "run", &["trainer.max_steps=2"]);
    let (summary, rows) = (run.json("summary.json"), run.rows());
    let last = rows
        .iter()
        .rfind(|row| row.get("loss").is_some())
        .expect("a step");
    assert_eq!(summary["steps"], 2);
    assert_eq!(summary["tokens"], last["tokens"]);
    let loss = |value: &serde_json::Value| value.as_f64().expect("a loss") as f32;
    assert_eq!(loss(&summary["train_loss"]), loss(&last["loss"]));
    assert!(summary["wall_time_seconds"].as_f64() > Some(0.0));
}
