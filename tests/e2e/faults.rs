//! What the machine does to a run: full and read-only disks, damage, kills during a save, signals at bad moments.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tt_testkit::{SmallDisk, in_own_mounts, make_read_only};

use crate::harness::{Place, RunFolder, Running, entries, nano};

fn run_dir(folder: &RunFolder) -> String {
    format!("hydra.run.dir={}", folder.0.display())
}

fn checkpoints(run: &RunFolder) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().map(|n| n.to_string_lossy().into());
    let folders = entries(&run.join("checkpoints"));
    folders.iter().filter_map(name).collect()
}

fn weights(run: &RunFolder) -> Vec<u8> {
    fs::read(run.final_checkpoint().join("model.safetensors")).expect("weights")
}

/// The run equals one that nothing happened to.
#[track_caller]
fn assert_equals_undisturbed(run: &RunFolder, args: &[&str]) {
    let place = Place::new();
    let mut args = args.to_vec();
    args.push("hydra.run.dir=undisturbed");
    place.run_nano(&args).with_code(0);
    let reference = RunFolder(place.path().join("undisturbed"));
    assert_eq!(run.timeless_rows(), reference.timeless_rows());
    assert!(weights(run) == weights(&reference), "weights differ");
}

#[test]
fn a_disk_full_at_a_save_keeps_the_checkpoints_before_and_the_run_goes_on_with_more_room() {
    let name = "faults::a_disk_full_at_a_save_keeps_the_checkpoints_before_and_the_run_goes_on_with_more_room";
    in_own_mounts(name, || {
        let (place, disk) = (Place::new(), SmallDisk::mount(5000));
        let run = RunFolder(disk.path().join("run"));
        let folder = run_dir(&run);
        let args = [
            "trainer.max_steps=8",
            "trainer.checkpoint_interval=1",
            "trainer.checkpoint.keep_last=null",
        ];
        let with_folder = || {
            args.iter()
                .copied()
                .chain([folder.as_str()])
                .collect::<Vec<_>>()
        };
        place
            .run_nano(&with_folder())
            .with_code(1)
            .complains("no space left on the disk for")
            .complains("the checkpoint needs")
            .complains("are free");
        let saved = checkpoints(&run);
        assert!(!saved.is_empty() && saved.len() < 8, "{saved:?}");
        assert!(
            saved.iter().all(|name| name.starts_with("step-")),
            "{saved:?}"
        );

        disk.resize(60_000);
        let last = saved.len();
        place
            .run_nano(&with_folder())
            .with_code(0)
            .prints(&format!("from step {last}"));
        assert_equals_undisturbed(&run, &args);
    });
}

#[test]
fn a_disk_full_for_metrics_ends_the_run_and_it_goes_on_with_more_room() {
    let name = "faults::a_disk_full_for_metrics_ends_the_run_and_it_goes_on_with_more_room";
    in_own_mounts(name, || {
        let (place, disk) = (Place::new(), SmallDisk::mount(20_000));
        let run = RunFolder(disk.path().join("run"));
        let folder = run_dir(&run);
        place
            .run_nano(&["trainer.max_steps=3", &folder])
            .with_code(0);
        let endless = [
            "trainer.max_steps=1000000",
            "trainer.checkpoint_interval=null",
        ];
        let mut running = place.start_nano(&[endless[0], endless[1], &folder]);
        running.wait_for_rows(&run, 10);
        let filler = disk.path().join("filler");
        let full = fs::write(&filler, vec![1; 20_000_000]).expect_err("a full disk");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        running
            .finish()
            .with_code(1)
            .complains("cannot write")
            .complains("metrics.jsonl");
        assert_eq!(checkpoints(&run), ["step-00000003"]);

        fs::remove_file(filler).expect("removed");
        let longer = ["trainer.max_steps=6", folder.as_str()];
        place.run_nano(&longer).with_code(0).prints("from step 3");
        assert_eq!(run.timeless_rows().len(), 8, "six steps, two validations");
    });
}

#[test]
fn a_read_only_folder_is_named_before_anything_is_trained() {
    let name = "faults::a_read_only_folder_is_named_before_anything_is_trained";
    in_own_mounts(name, || {
        let (place, disk) = (Place::new(), SmallDisk::mount(5000));
        make_read_only(disk.path());
        let run = RunFolder(disk.path().join("run"));
        place
            .run_nano(&["trainer.max_steps=1", &run_dir(&run)])
            .with_code(2)
            .complains("Read-only file system")
            .complains(&run.0.display().to_string());
    });
}

#[test]
fn a_folder_that_becomes_read_only_ends_the_run_at_its_next_save() {
    let name = "faults::a_folder_that_becomes_read_only_ends_the_run_at_its_next_save";
    in_own_mounts(name, || {
        let place = Place::new();
        let args = [
            "trainer.max_steps=1000000",
            "trainer.checkpoint_interval=5",
            "hydra.run.dir=run",
        ];
        let run = RunFolder(place.path().join("run"));
        let mut running = place.start_nano(&args);
        running.wait_until(|| run.join("checkpoints/step-00000005").exists());
        make_read_only(&run.join("checkpoints"));
        running
            .finish()
            .with_code(1)
            .complains("Read-only file system")
            .complains("checkpoints");
        let latest = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
        assert!(latest.checkpoint.is_some_and(|saved| saved.step() >= 5));
    });
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_used() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 3] = [
        ("does not match its checksum", |newest| {
            let path = newest.join("model.safetensors");
            let mut bytes = fs::read(&path).expect("weights");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).expect("written");
        }),
        ("optimizer.safetensors has 100 bytes", |newest| {
            let path = newest.join("trainer_state/optimizer.safetensors");
            let file = fs::File::options().write(true).open(path).expect("a file");
            file.set_len(100).expect("cut");
        }),
        ("it was never completed", |newest| {
            fs::remove_file(newest.join("manifest.json")).expect("removed");
        }),
    ];
    let whole = ["trainer.max_steps=9", "trainer.checkpoint_interval=2"];
    for (problem, harm) in harms {
        let place = Place::new();
        let run = RunFolder(place.path().join("run"));
        let folder = run_dir(&run);
        place
            .run_nano(&["trainer.max_steps=6", whole[1], &folder])
            .with_code(0);
        harm(&run.join("checkpoints/step-00000006"));
        place
            .run_nano(&[whole[0], whole[1], &folder])
            .with_code(0)
            .prints("warning: checkpoint ")
            .prints("step-00000006 is damaged")
            .prints(problem)
            .prints("using the one before it")
            .prints("from step 4");
        let steps: Vec<_> = run
            .rows()
            .iter()
            .filter(|row| row.get("loss").is_some())
            .filter_map(|row| row["step"].as_u64())
            .collect();
        assert_eq!(steps, (1..=9).collect::<Vec<_>>(), "{problem}");
        let latest = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
        assert_eq!(latest.skipped, [], "step 6 is whole again: {problem}");
    }
}

#[test]
fn killed_during_its_saves_it_keeps_whole_checkpoints_and_equals_a_run_never_killed() {
    // Wide enough for a save to take its time.
    let args = [
        "model.hidden_size=128",
        "trainer.max_steps=12",
        "trainer.checkpoint_interval=1",
        "trainer.checkpoint.keep_last=2",
        "hydra.run.dir=run",
    ];
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let saves = run.join("checkpoints");
    let is_saving = || {
        let names = entries(&saves);
        names.iter().any(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(".tmp-step-")
        })
    };
    let mut interrupted = 0;
    for kill in 0..8 {
        let mut running = place.start_nano(&args);
        let rows = run.row_count();
        let started = Instant::now();
        while !(run.row_count() > rows && is_saving()) {
            if !running.is_at_work() {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(120), "never saves");
        }
        if !running.is_at_work() {
            break;
        }
        std::thread::sleep(Duration::from_micros(400 * kill));
        running.signal("KILL");
        let finished = running.finish();
        assert_ne!(finished.code, Some(1), "{finished:?}");
        interrupted += usize::from(is_saving());
        if saves.exists() {
            let latest = tt_checkpoint::latest(&saves).expect("readable");
            assert_eq!(latest.skipped, [], "after kill {kill}");
        }
    }
    assert!(interrupted >= 2, "{interrupted} kills hit a save");
    let again = place.run_nano(&args).with_code(0);
    drop(again);
    assert_eq!(checkpoints(&run), ["step-00000011", "step-00000012"]);
    assert_equals_undisturbed(&run, &args[..4]);
}

#[test]
fn retention_keeps_the_last_ones_and_milestones() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let args = [
        "trainer.max_steps=9",
        "trainer.checkpoint_interval=1",
        "trainer.checkpoint.keep_last=2",
        "trainer.checkpoint.keep_every=4",
        "hydra.run.dir=run",
    ];
    place.run_nano(&args).with_code(0);
    assert_eq!(
        checkpoints(&run),
        ["step-00000004", "step-00000008", "step-00000009"]
    );
}

#[test]
fn retention_never_removes_the_only_good_one() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let first = [
        "trainer.max_steps=4",
        "trainer.checkpoint_interval=1",
        "hydra.run.dir=run",
    ];
    place.run_nano(&first).with_code(0);
    assert_eq!(
        checkpoints(&run),
        ["step-00000002", "step-00000003", "step-00000004"]
    );
    // Of full size but wrong: retention counts it, so the next save must not drop the good one first.
    for step in ["step-00000003", "step-00000004"] {
        let path = run.join("checkpoints").join(step).join("config.json");
        let text = fs::read_to_string(&path).expect("a config");
        fs::write(&path, text.replace('1', "2")).expect("written");
    }
    // Killed before its next save it still has the good one.
    let endless = [
        "trainer.max_steps=1000000",
        "trainer.checkpoint.keep_last=1",
        "trainer.checkpoint_interval=null",
        "hydra.run.dir=run",
    ];
    let mut running = place.start_nano(&endless);
    running.wait_for_rows(&run, 8);
    running.kill();
    let latest = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
    assert_eq!(latest.checkpoint.map(|saved| saved.step()), Some(2));
    let keep_one = [
        "trainer.max_steps=3",
        "trainer.checkpoint.keep_last=1",
        "hydra.run.dir=run",
    ];
    place.run_nano(&keep_one).with_code(0).prints("from step 2");
    let latest = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
    assert_eq!(latest.checkpoint.map(|saved| saved.step()), Some(3));
}

/// A moment at which a signal arrives.
struct Moment<'a> {
    /// What makes it last, and is left out to finish the run.
    slow: &'a [&'a str],
    /// Arguments of the run besides.
    args: &'a [&'a str],
    /// Rows that are there by then.
    rows: usize,
}

/// Stops a run at a moment by each signal; it must end long before the moment would. Gives the run to be finished.
#[track_caller]
fn stop_at(moment: &Moment<'_>, signal: &str, place: &Place) -> RunFolder {
    let run = RunFolder(place.path().join("run"));
    let args: Vec<_> = moment.args.iter().chain(moment.slow).copied().collect();
    let mut running = place.start_nano(&args);
    // Until then there is nothing to save, and a signal ends the run without a word.
    running.wait_for_print("run folder ");
    running.wait_for_rows(&run, moment.rows);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(run.row_count(), moment.rows, "the moment is over");
    running.signal(signal);
    let asked = Instant::now();
    running.finish().with_code(75).prints("continue");
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(run.row_count(), moment.rows, "broken off");
    run
}

#[test]
fn a_signal_ends_a_validation_and_the_run_that_goes_on_makes_it() {
    let args = [
        "trainer.max_steps=3",
        "trainer.eval_interval=2",
        "data.num_val_blocks=20000",
        "trainer.sample.count=0",
    ];
    let place = Place::new();
    let moment = Moment {
        slow: &[],
        args: &[&args[..], &["hydra.run.dir=run"]].concat(),
        rows: 2,
    };
    for signal in ["TERM", "USR1"] {
        // The second one is broken off where the first was.
        let run = stop_at(&moment, signal, &place);
        let saved = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
        assert_eq!(saved.checkpoint.map(|saved| saved.step()), Some(2));
    }
    let run = RunFolder(place.path().join("run"));
    place
        .run_nano(moment.args)
        .with_code(0)
        .prints("from step 2");
    assert_equals_undisturbed(&run, &args);
}

#[test]
fn a_signal_ends_sampling() {
    for signal in ["TERM", "USR1"] {
        let place = Place::new();
        let args = ["trainer.max_steps=3", "hydra.run.dir=run"];
        let moment = Moment {
            // Samples of the greatest length, as many as there are prompts.
            slow: &[
                "trainer.sample_interval=2",
                "trainer.sample.count=1000",
                "trainer.sample.max_new_tokens=100000",
                "data.num_val_blocks=2000",
            ],
            args: &args,
            rows: 2,
        };
        let run = stop_at(&moment, signal, &place);
        let saved = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
        assert_eq!(saved.checkpoint.map(|saved| saved.step()), Some(2));
        let go_on = ["trainer.max_steps=3", "resume=run"];
        place.run_nano(&go_on).with_code(0).prints("from step 2");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_waiting_for_data() {
    let text: String = (0..4000)
        .map(|i| format!("Cat {i} sat on mat {} of {}.\n\n", i * 7, i * 13 % 11))
        .collect();
    for signal in ["TERM", "USR1"] {
        let place = Place::new();
        let path = place.write("text.txt", &text);
        let args = [
            "data=text",
            "data.dataset.kwargs.separator=blank_line",
            "data.path=text.txt",
            "data.tokenizer.vocab_size=300",
            "trainer.max_steps=200",
            "hydra.run.dir=run",
        ];
        let run = RunFolder(place.path().join("run"));
        let mut running = place.start_nano(&args);
        running.wait_for_rows(&run, 3);
        // Opening a pipe that nobody writes to takes for ever, as a file server does that has gone away.
        let (aside, pipe) = (place.path().join("aside.txt"), place.path().join("pipe"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo(1)").success());
        fs::hard_link(&path, &aside).expect("linked");
        fs::rename(&pipe, &path).expect("renamed");
        let rows = wait_until_it_stands_still(&mut running, &run);
        running.signal(signal);
        let asked = Instant::now();
        running.finish().with_code(75).prints("continue");
        assert!(asked.elapsed() < Duration::from_secs(20));
        let saved = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
        assert_eq!(
            saved.checkpoint.map(|saved| saved.step()),
            Some(rows as u64)
        );

        fs::rename(&aside, &path).expect("renamed");
        place.run_nano(&args).with_code(0);
        let reference = place.start(&nano(&[&args[..5], &["hydra.run.dir=reference"]].concat()));
        reference.finish().with_code(0);
        let reference = RunFolder(place.path().join("reference"));
        assert_eq!(run.timeless_rows(), reference.timeless_rows());
    }
}

/// Rows, once there have been no more for a while.
fn wait_until_it_stands_still(running: &mut Running, run: &RunFolder) -> usize {
    let started = Instant::now();
    let (mut rows, mut since) = (run.row_count(), Instant::now());
    while since.elapsed() < Duration::from_secs(2) {
        assert!(running.is_at_work() && started.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(20));
        if run.row_count() != rows {
            (rows, since) = (run.row_count(), Instant::now());
        }
    }
    rows
}
