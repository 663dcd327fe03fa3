//! `--multirun`: jobs in processes of their own, and the same command going on where it stopped.

use serde_json::Value;

use crate::harness::{Finished, Place, RunFolder, entries, nano};

/// A sweep in a folder of a given name, of jobs of two steps.
const SWEEP: &[&str] = &["-m", "hydra.sweep.dir=sweep", "trainer.max_steps=2"];

/// Data that is refused only when the job has started: a file without a document.
const FAILING: &[&str] = &["data=stories,text", "+data.path=empty.txt"];

fn place_with_empty_file() -> Place {
    let place = Place::new();
    place.write("empty.txt", "");
    place
}

fn sweep<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let args: Vec<_> = SWEEP.iter().chain(more).copied().collect();
    nano(&args)
}

fn job(place: &Place, name: &str) -> RunFolder {
    RunFolder(place.path().join("sweep").join(name))
}

fn status(job: &RunFolder) -> String {
    let state = job.json("job.json");
    state["status"].as_str().expect("a status").to_owned()
}

/// The rows of `sweep.csv`, its header first.
fn csv(place: &Place) -> Vec<Vec<String>> {
    let text = RunFolder(place.path().join("sweep")).read("sweep.csv");
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().map(cells).collect()
}

/// How often a job's process has been started.
fn attempts(job: &RunFolder) -> usize {
    job.read("train.log").matches("M parameters").count()
}

#[test]
fn every_combination_is_run_and_the_best_comes_first() {
    let place = Place::new();
    let finished = place
        .run(&sweep(&["lr=1e-2,1e-9", "seed=1,2"]))
        .with_code(0)
        .prints("4 jobs, 1 at a time");
    assert_eq!(finished.stderr, "");
    for (name, lr, seed) in [
        ("0", 1e-2, 1),
        ("1", 1e-2, 2),
        ("2", 1e-9, 1),
        ("3", 1e-9, 2),
    ] {
        let job = job(&place, name);
        assert_eq!(status(&job), "finished");
        let config = job.json("resolved_config.json");
        assert_eq!(
            (config["lr"].as_f64(), config["seed"].as_i64()),
            (Some(lr), Some(seed))
        );
        assert!(job.join("checkpoints").is_dir());
    }
    let rows = csv(&place);
    let header = [
        "job",
        "lr",
        "seed",
        "final_val_loss",
        "status",
        "exit_code",
        "folder",
    ];
    assert_eq!(rows[0], header);
    let losses: Vec<f64> = rows[1..]
        .iter()
        .map(|row| row[3].parse().expect("a loss"))
        .collect();
    assert_eq!(losses.len(), 4);
    assert!(losses.is_sorted(), "{losses:?}");
    assert_eq!(rows[1][1], "0.01", "the rate that learns");
    let summary = job(&place, &rows[1][0]).json("summary.json");
    assert_eq!(summary["final_val_loss"].as_f64(), Some(losses[0]));
    finished.prints(&format!("best        job {}", rows[1][0]));
    let svg = RunFolder(place.path().join("sweep")).read("sweep.svg");
    assert_eq!(svg.matches("<circle").count(), 2 * 4, "{svg}");
}

#[test]
fn one_failure_does_not_end_the_others_and_is_tried_again() {
    let place = place_with_empty_file();
    let command = sweep(&[FAILING, &["data.collator.kwargs.packing=true,false"]].concat());
    let fail = |finished: Finished| finished.with_code(1).prints("2 failed");
    fail(place.run(&command));
    for (name, expected) in [
        ("0", "finished"),
        ("1", "finished"),
        ("2", "failed"),
        ("3", "failed"),
    ] {
        assert_eq!(status(&job(&place, name)), expected);
    }
    assert_eq!(
        job(&place, "2").json("job.json")["exit_code"],
        Value::from(2)
    );
    assert!(job(&place, "2").read("train.log").contains("empty.txt"));

    let text: String = (0..300)
        .map(|i| format!("Cat {i} sat on mat {}.\n\n", i * 7))
        .collect();
    place.write("empty.txt", &text);
    place.run(&command).with_code(0);
    for name in ["0", "1", "2", "3"] {
        assert_eq!(status(&job(&place, name)), "finished");
        assert_eq!(attempts(&job(&place, name)), 1, "job {name}");
    }
}

#[test]
fn on_failure_stop_leaves_the_rest_pending() {
    let place = place_with_empty_file();
    let command = sweep(&[
        "sweep.on_failure=stop",
        "data=text,stories",
        "+data.path=empty.txt",
    ]);
    place.run(&command).with_code(1);
    assert_eq!(status(&job(&place, "0")), "failed");
    assert_eq!(status(&job(&place, "1")), "pending");
}

#[test]
fn on_failure_stop_lets_jobs_at_work_save() {
    let place = place_with_empty_file();
    let command = nano(&[
        "-m",
        "hydra.sweep.dir=sweep",
        "hydra.launcher.n_jobs=2",
        "trainer.max_steps=100000",
        "sweep.on_failure=stop",
        "data=stories,text",
        "+data.path=empty.txt",
    ]);
    place.run(&command).with_code(1);
    assert_eq!(status(&job(&place, "0")), "interrupted");
    assert_eq!(status(&job(&place, "1")), "failed");
}

#[test]
fn jobs_that_begin_from_a_checkpoint_go_on_from_their_own() {
    let place = Place::new();
    place
        .run_nano(&["hydra.run.dir=base", "trainer.max_steps=2"])
        .with_code(0);
    let command = nano(&[
        "-m",
        "hydra.sweep.dir=sweep",
        "resume=base",
        "trainer.max_steps=100000",
    ]);
    for _ in 0..2 {
        let mut running = place.start(&command);
        let before = job(&place, "0").row_count();
        running.wait_for_rows(&job(&place, "0"), before + 3);
        running.signal("TERM");
        running.finish().with_code(75);
    }
    let log = job(&place, "0").read("train.log");
    assert_eq!(log.matches("starting from step 2 of").count(), 1, "{log}");
    assert_eq!(log.matches("resuming").count(), 1, "{log}");
}

#[test]
fn what_is_wrong_with_any_job_is_said_before_the_first_starts() {
    let place = Place::new();
    place
        .run(&sweep(&["lr=1e-3,-1"]))
        .with_code(2)
        .complains("lr=-1");
    place
        .run(&sweep(&["seed=1,2", "hydra.launcher.n_jobs=0"]))
        .with_code(2)
        .complains("hydra.launcher.n_jobs");
    place
        .run(&sweep(&["seed=1,2", "hydra.sweep.subdir=one"]))
        .with_code(2)
        .complains("two jobs");
    assert_eq!(
        entries(&place.path().join("sweep")),
        Vec::<std::path::PathBuf>::new()
    );
}

#[test]
fn jobs_that_cannot_run_are_found_before_the_first_starts_all_at_once() {
    let place = Place::new();
    place
        .run(&sweep(&[
            "trainer.global_batch_size=4,3",
            "data.sequence_length=32,100000",
        ]))
        .with_code(2)
        .complains("3 is no multiple of `trainer.micro_batch_size` 2")
        .complains("100000 is more than the model's max_position_embeddings");
    place
        .run(&sweep(&["data=stories,text", "+data.path=absent.txt"]))
        .with_code(2)
        .complains("absent.txt");
    // What only shows with the parameters, which take no memory for that.
    place
        .run(&sweep(&[
            "trainer/lr_scheduler=cosine,polynomial",
            "+trainer.lr_scheduler.kwargs.lr_end=1,1e-7",
        ]))
        .with_code(2)
        .complains("lr_end");
    assert!(!place.path().join("sweep").exists());
}

#[test]
fn a_job_whose_folder_cannot_be_used_fails_alone() {
    let place = Place::new();
    place.write("sweep/1", "a file in the way");
    place
        .run(&sweep(&["seed=1,2,3"]))
        .with_code(1)
        .prints("1 failed");
    for name in ["0", "2"] {
        assert_eq!(status(&job(&place, name)), "finished");
    }
    // And with `stop` it lets no other start.
    let place = Place::new();
    place.write("sweep/1", "a file in the way");
    let stop = "sweep.on_failure=stop";
    place.run(&sweep(&["seed=1,2", stop])).with_code(1);
    assert_eq!(status(&job(&place, "0")), "pending");
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let place = Place::new();
    let long = "trainer.max_steps=100000";
    let command = |steps| nano(&["-m", "hydra.sweep.dir=sweep", steps, "seed=1,2"]);
    for (signal, code) in [("INT", 130), ("TERM", 75)] {
        let mut running = place.start(&command(long));
        let at_start = job(&place, "0").row_count();
        running.wait_for_rows(&job(&place, "0"), at_start + 3);
        running.signal(signal);
        running.finish().with_code(code).prints("the same command");
        assert_eq!(status(&job(&place, "0")), "interrupted");
        assert_eq!(status(&job(&place, "1")), "pending");
        let saved = tt_checkpoint::latest(&job(&place, "0").join("checkpoints"));
        assert!(saved.expect("readable").checkpoint.is_some(), "saved");
    }
    let log = job(&place, "0").read("train.log");
    assert!(log.contains("resuming"), "{log}");
}

#[test]
fn jobs_do_not_outlive_a_sweep_that_is_killed() {
    let place = Place::new();
    let command = nano(&[
        "-m",
        "hydra.sweep.dir=sweep",
        "trainer.max_steps=100000",
        "seed=1,2",
    ]);
    let mut running = place.start(&command);
    running.wait_for_rows(&job(&place, "0"), 3);
    running.kill();
    // Goes on only once the job that was left behind has saved and let go of its folder.
    let mut running = place.start(&command);
    running.wait_until(|| job(&place, "0").read("train.log").contains("resuming"));
    running.signal("TERM");
    running.finish().with_code(75);
    assert_eq!(status(&job(&place, "0")), "interrupted");
}

#[test]
fn jobs_run_side_by_side() {
    let place = Place::new();
    let command = nano(&[
        "-m",
        "hydra.sweep.dir=sweep",
        "hydra.launcher.n_jobs=2",
        "trainer.max_steps=100000",
        "seed=1,2,3",
    ]);
    let mut running = place.start(&command);
    running.wait_for_rows(&job(&place, "0"), 1);
    running.wait_for_rows(&job(&place, "1"), 1);
    assert_eq!(status(&job(&place, "0")), "running");
    assert_eq!(status(&job(&place, "2")), "pending");
    running.signal("INT");
    running.finish().with_code(130);
    assert_eq!(status(&job(&place, "1")), "interrupted");
}

#[test]
fn without_a_name_the_newest_unfinished_sweep_goes_on() {
    let place = place_with_empty_file();
    let command = nano(&[&["-m", "trainer.max_steps=2"], FAILING].concat());
    let sweeps = || -> Vec<_> {
        let days = entries(&place.path().join("multirun"));
        days.iter().flat_map(|day| entries(day)).collect()
    };
    place.run(&command).with_code(1);
    assert_eq!(sweeps().len(), 1);
    place.run(&command).with_code(1).prints("going on with");
    assert_eq!(sweeps().len(), 1);
    let first = RunFolder(sweeps()[0].join("0"));
    assert_eq!(attempts(&first), 1, "finished jobs are skipped");
    place
        .run(&[&command[..], &["resume=none"]].concat())
        .with_code(1);
    assert_eq!(sweeps().len(), 2);
}

#[test]
fn the_mode_may_be_a_setting() {
    let place = Place::new();
    let command = [&["hydra.mode=MULTIRUN"], &SWEEP[1..], &["seed=1,2"]].concat();
    place.run_nano(&command).with_code(0).prints("2 jobs");
    assert_eq!(status(&job(&place, "1")), "finished");
}

#[test]
fn another_config_in_the_same_folder_moves_the_earlier_jobs_aside() {
    let place = Place::new();
    place.run(&sweep(&["seed=1"])).with_code(0);
    place.run(&sweep(&["seed=2"])).with_code(0);
    let seed = |name| job(&place, name).json("resolved_config.json")["seed"].clone();
    assert_eq!(seed("0"), Value::from(2));
    assert_eq!(seed("0.1"), Value::from(1));
}

#[test]
fn folders_may_be_named_for_overrides() {
    let place = Place::new();
    place
        .run(&sweep(&[
            "seed=1,2",
            r"hydra.sweep.subdir='seed ${seed}, it\'s'",
        ]))
        .with_code(0);
    assert_eq!(status(&job(&place, "seed 2, it's")), "finished");
}
