//! A run killed at any moment goes on as if nothing had happened: `metrics.jsonl` equals, line for line apart from
//! times, that of a run never interrupted, and the final weights equal to the byte.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::time::Duration;

use crate::harness::{Place, RunFolder, Running};
use crate::preference;

const STEPS: usize = 60;

/// Dropout, packing, accumulation, a short file read three times over, and saves that rarely coincide with a kill.
const RUN: &[&str] = &[
    "model.hidden_dropout=0.1",
    "data=text",
    "data.dataset.kwargs.separator=blank_line",
    "data.path=text.txt",
    "data.tokenizer.vocab_size=384",
    "trainer.max_steps=60",
    "trainer.checkpoint_interval=7",
    "trainer.eval_interval=10",
];

/// Models with their dropout.
const QWEN2: (&str, &[&str]) = ("qwen2", &["model.hidden_dropout=0.1"]);
const GPT2: (&str, &[&str]) = (
    "gpt2",
    &[
        "model.embd_pdrop=0.1",
        "model.attn_pdrop=0.1",
        "model.resid_pdrop=0.1",
    ],
);

// Rows of `metrics.jsonl`: the text makes about twenty steps.
const ANYWHERE: Range<usize> = 1..50;
const BEFORE_THE_FIRST_SAVE: Range<usize> = 1..6;
const EPOCH_1: Range<usize> = 1..18;
const EPOCH_2: Range<usize> = 26..40;
const EPOCH_3: Range<usize> = 46..55;

/// Sentences of a small grammar, about twenty steps' worth of tokens.
fn text() -> String {
    let names = ["Ann", "Ben", "Cleo", "Dov", "Eve", "Finn", "Gus"];
    let verbs = ["sees", "finds", "takes", "paints", "wants"];
    let things = [
        "a red boat",
        "the old map",
        "a small stone",
        "two pears",
        "the kite",
    ];
    (0..240)
        .map(|i| {
            let name = names[i * 3 % names.len()];
            let verb = verbs[i * 7 / 2 % verbs.len()];
            let thing = things[i * 11 / 3 % things.len()];
            format!("{name} {verb} {thing} on day {i}.\n\n")
        })
        .collect()
}

fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &text());
    place
}

/// [`RUN`] of the nano model of a family, with its dropout in place of Qwen2's.
fn start_model(
    place: &Place,
    (model, dropout): (&str, &[&str]),
    folder: &str,
    threads: usize,
) -> (Running, RunFolder) {
    let model = format!("+model={model}");
    let shared = crate::harness::nano(RUN).into_iter();
    let shared = shared.filter(|arg| !arg.starts_with("+model=") && !arg.contains("dropout"));
    let args: Vec<_> = [&*model].into_iter().chain(shared).collect();
    start_with(place, &[&args[..], dropout].concat(), folder, threads)
}

fn start_with(place: &Place, args: &[&str], folder: &str, threads: usize) -> (Running, RunFolder) {
    let run_dir = format!("hydra.run.dir={folder}");
    let args = [args, &[&run_dir]].concat();
    let mut command = place.command(&args);
    command.env("RAYON_NUM_THREADS", threads.to_string());
    (
        Running::start(command),
        RunFolder(place.path().join(folder)),
    )
}

fn start(place: &Place, folder: &str, threads: usize) -> (Running, RunFolder) {
    start_model(place, QWEN2, folder, threads)
}

/// Twice killed, each with a checkpoint before the kill and steps after it that are lost: the reference model of the third
/// process is that of the first.
#[test]
fn killed_preference_runs_go_on_with_the_reference_that_they_began_with() {
    for (name, kind) in preference::KINDS {
        let place = Place::new();
        let start = |folder: &str| {
            let run_dir = format!("hydra.run.dir={folder}");
            let command = place.command(&preference::arguments(kind, &[&run_dir]));
            (
                Running::start(command),
                RunFolder(place.path().join(folder)),
            )
        };
        let (running, reference) = start("reference");
        running.finish().with_code(0);
        for after in [5, 12] {
            let (mut running, run) = start("killed");
            running.wait_for_rows(&run, after + random(3));
            running.kill();
        }
        let (running, run) = start("killed");
        running.finish().with_code(0).prints("resuming");
        assert_same_run(&run, &reference, name);
    }
}

#[track_caller]
fn assert_same_run(run: &RunFolder, reference: &RunFolder, what: &str) {
    let (rows, expected) = (run.timeless_rows(), reference.timeless_rows());
    for (row, expected) in rows.iter().zip(&expected) {
        assert_eq!(row, expected, "{what}");
    }
    assert_eq!(rows.len(), expected.len(), "{what}");
    let weights = |run: &RunFolder| {
        let checkpoint = run.final_checkpoint();
        let adapter = checkpoint.join("adapter_model.safetensors");
        let file = if adapter.exists() {
            adapter
        } else {
            checkpoint.join("model.safetensors")
        };
        std::fs::read(file).expect("weights")
    };
    assert!(weights(run) == weights(reference), "weights differ: {what}");
}

/// A number below `bound`, different each time the tests run.
fn random(bound: usize) -> usize {
    (RandomState::new().build_hasher().finish() % bound as u64) as usize
}

#[test]
fn killed_at_ten_random_moments_it_equals_a_run_never_interrupted() {
    let place = place();
    let (running, reference) = start(&place, "reference", 1);
    running.finish().with_code(0);
    assert!(reference.row_count() >= STEPS);
    let state = std::fs::read_to_string(
        reference
            .final_checkpoint()
            .join("trainer_state/state.json"),
    );
    let state: serde_json::Value = serde_json::from_str(&state.expect("a state")).expect("JSON");
    assert_eq!(
        state["cursor"]["epoch"], 2,
        "the third epoch, counted from 0: {state}"
    );

    // Ten kills in seven runs of it: anywhere, in epoch 2, and twice in a row.
    let kills: [&[Range<usize>]; 7] = [
        &[ANYWHERE],
        &[EPOCH_1],
        &[EPOCH_2],
        &[EPOCH_2],
        &[EPOCH_1, EPOCH_2],
        &[EPOCH_2, EPOCH_3],
        &[BEFORE_THE_FIRST_SAVE, EPOCH_1],
    ];
    let mut trials: Vec<_> = kills
        .iter()
        .map(|kills| (QWEN2, &reference, *kills))
        .collect();
    // And one of GPT-2, whose attention drops out too.
    let (running, of_gpt2) = start_model(&place, GPT2, "reference-gpt2", 1);
    running.finish().with_code(0);
    trials.push((GPT2, &of_gpt2, &[EPOCH_1, EPOCH_2]));
    for (trial, (model, reference, kills)) in trials.into_iter().enumerate() {
        let folder = format!("killed-{trial}");
        let start = |threads| start_model(&place, model, &folder, threads);
        let mut history = Vec::new();
        for (nth, rows) in kills.iter().enumerate() {
            let (mut running, run) = start(1 + nth);
            let row = rows.start + random(rows.len());
            running.wait_for_rows(&run, row.max(run.row_count() + nth));
            let pause = Duration::from_micros(random(20_000) as u64);
            std::thread::sleep(pause);
            history.push(format!("killed {pause:?} after row {row}"));
            running.kill();
        }
        let (running, run) = start(2 + trial % 2);
        running.finish().with_code(0);
        assert_same_run(&run, reference, &history.join(", then "));
    }
}

/// Which tokens are hidden is a function of seed, epoch and row: a run that goes on hides what it would have hidden, whoever
/// makes its batches, and reports the same masked accuracy.
#[test]
fn masked_language_modelling_goes_on_likewise_with_any_number_of_workers() {
    const BERT: &[&str] = &[
        "+model=bert",
        "model/size=bert-nano",
        "+trainer=masked_lm",
        "model.hidden_dropout_prob=0.1",
        "model.attention_probs_dropout_prob=0.1",
        "data.collator.kwargs.whole_word_mask=true",
        "data.collator.kwargs.max_ngrams=3",
        "data.sequence_length=32",
        "trainer.global_batch_size=4",
        "trainer.micro_batch_size=2",
    ];
    let place = place();
    let start = |folder: &str, workers: &str| {
        let own = RUN.iter().filter(|arg| !arg.starts_with("model."));
        let args: Vec<&str> = BERT.iter().chain(own).copied().collect();
        start_with(&place, &[&args[..], &[workers]].concat(), folder, 2)
    };
    let (running, reference) = start("reference", "data.num_workers=1");
    running
        .finish()
        .with_code(0)
        .prints("of the hidden tokens on validation");
    for (folder, rows, workers) in [("few", EPOCH_1, [0, 3]), ("many", EPOCH_2, [4, 0])] {
        let [first, then] = workers.map(|workers| format!("data.num_workers={workers}"));
        let (mut running, run) = start(folder, &first);
        let row = rows.start + random(rows.len());
        running.wait_for_rows(&run, row);
        running.kill();
        let (running, run) = start(folder, &then);
        running.finish().with_code(0);
        assert_same_run(
            &run,
            &reference,
            &format!("killed after row {row}, {workers:?} workers"),
        );
    }
    let validations = reference.rows();
    let accuracy = validations
        .iter()
        .filter(|row| row.get("val_masked_accuracy").is_some());
    assert_eq!(accuracy.count(), STEPS / 10);
}

#[test]
fn the_same_command_goes_on_without_naming_a_folder() {
    let place = place();
    let mut running = place.start_nano(RUN);
    let run = loop {
        if let Some(run) = place.run_folders().pop() {
            break run;
        }
        assert!(running.is_at_work());
    };
    running.wait_for_rows(&run, 20);
    running.kill();

    place.run_nano(RUN).with_code(0).prints("resuming");
    let (running, reference) = start(&place, "reference", 2);
    running.finish().with_code(0);
    assert_same_run(
        &place.run_folder(),
        &reference,
        "resumed by the same command",
    );
}

#[test]
fn a_finished_run_is_not_continued() {
    let place = Place::new();
    place.run_nano(&["trainer.max_steps=1"]).with_code(0);
    place.run_nano(&["trainer.max_steps=1"]).with_code(0);
    assert_eq!(place.run_folders().len(), 2);
}

#[test]
fn a_finished_run_named_again_is_left_alone_until_it_is_extended() {
    let place = Place::new();
    let run = ["trainer.max_steps=2", "hydra.run.dir=run"];
    place.run_nano(&run).with_code(0);
    let folder = RunFolder(place.path().join("run"));
    let summary = folder.read("summary.json");
    place.run_nano(&run).with_code(0).prints("finished already");
    assert_eq!(folder.read("summary.json"), summary);

    place
        .run_nano(&["trainer.max_steps=4", "hydra.run.dir=run"])
        .with_code(0)
        .prints("trainer.max_steps: 2 -> 4");
    let steps: Vec<_> = folder
        .rows()
        .iter()
        .filter(|row| row.get("loss").is_some())
        .map(|row| row["step"].clone())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4]);
}

#[test]
fn a_finished_run_asked_for_fewer_steps_keeps_its_summary() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=4", "hydra.run.dir=run"])
        .with_code(0);
    let folder = RunFolder(place.path().join("run"));
    let files = ["summary.json", "resolved_config.json", "metrics.jsonl"];
    let before = files.map(|name| folder.read(name));
    for more in ["hydra.run.dir=run", "resume=run"] {
        place
            .run_nano(&["trainer.max_steps=2", more])
            .with_code(0)
            .prints("nothing is left to do");
        assert_eq!(files.map(|name| folder.read(name)), before);
    }
}

#[test]
fn an_unfinished_run_asked_for_no_step_more_has_no_speed() {
    let place = Place::new();
    interrupt(&place, &["hydra.run.dir=run"]);
    let run = place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=run"])
        .with_code(0);
    assert!(!run.stdout.contains("NaN"), "{}", run.stdout);
    assert!(!run.stdout.contains("speed"), "{}", run.stdout);
}

#[cfg(unix)]
#[test]
fn the_command_to_continue_works_as_printed_whatever_the_folder_is_called() {
    let place = Place::new();
    let finished = place
        .run_nano(&["trainer.max_steps=1", r"hydra.run.dir='it\'s ü, x'"])
        .with_code(0);
    let (_, line) = finished
        .stdout
        .split_once("continue    tpu-train ")
        .expect("a command");
    let command = place.shell(&format!("\"$1\" {}", line.trim_end()), &[]);
    Running::start(command)
        .finish()
        .with_code(0)
        .prints("from step 1");
}

#[test]
fn another_config_is_another_run() {
    let place = Place::new();
    interrupt(&place, &[]);
    place.run_nano(&["trainer.max_steps=2"]).with_code(0);
    assert_eq!(place.run_folders().len(), 2);
}

#[test]
fn resume_none_starts_afresh() {
    let place = Place::new();
    interrupt(&place, &[]);
    let mut running = place.start_nano(&["trainer.max_steps=1000000", "resume=none"]);
    running.wait_until(|| place.run_folders().len() == 2);
    running.wait_for_rows(&place.run_folders()[1], 1);
}

#[test]
fn resume_none_in_a_used_folder_keeps_the_earlier_run_aside() {
    let place = Place::new();
    interrupt(&place, &["hydra.run.dir=run"]);
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run", "resume=none"])
        .with_code(0);
    let run = RunFolder(place.path().join("run"));
    assert_eq!(
        run.rows()
            .iter()
            .filter(|row| row.get("loss").is_some())
            .count(),
        2
    );
    let aside = RunFolder(place.path().join("run.1"));
    assert!(aside.row_count() >= 3);
}

#[test]
fn resume_path_continues_the_run_it_names() {
    let place = Place::new();
    interrupt(&place, &["hydra.run.dir=run"]);
    let steps = RunFolder(place.path().join("run")).row_count() + 20;
    let max_steps = format!("trainer.max_steps={steps}");
    place.run_nano(&["resume=run", &max_steps]).with_code(0);
    assert!(place.path().join("run/summary.json").exists());
    assert!(place.run_folders().is_empty());
}

/// Starts `args` and kills it once it has saved after `step`.
fn kill_after(place: &Place, args: &[&str], run: impl Fn() -> Option<RunFolder>, step: usize) {
    let mut running = place.start_nano(args);
    let name = format!("checkpoints/step-{step:08}/manifest.json");
    running.wait_until(|| run().is_some_and(|run| run.join(&name).exists()));
    running.kill();
}

#[test]
fn the_same_command_goes_on_when_it_began_from_another_run() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=a"])
        .with_code(0);
    let branch = [
        "trainer.max_steps=1000000",
        "trainer.checkpoint_interval=2",
        "resume=a",
        "hydra.run.dir=b",
    ];
    let b = RunFolder(place.path().join("b"));
    // Before its first save it begins there again, after it goes on from its own.
    let mut running = place.start_nano(&branch);
    running.wait_for_rows(&b, 1);
    running.kill();
    kill_after(&place, &branch, || Some(b.clone()), 4);
    let mut running = place.start_nano(&branch);
    running.wait_until(|| b.join("checkpoints/step-00000008").exists());
    running.signal("INT");
    running.finish().with_code(130).prints("resuming");
    assert!(!place.path().join("b.1").exists());
    let steps: Vec<_> = b.rows().iter().map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps[..3], [Some(3), Some(4), Some(5)]);
}

#[test]
fn the_same_command_goes_on_when_it_began_from_a_checkpoint() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=a"])
        .with_code(0);
    let branch = [
        "trainer.max_steps=20",
        "trainer.checkpoint_interval=4",
        "resume=a/checkpoints/step-00000002",
    ];
    kill_after(&place, &branch, || place.run_folders().pop(), 4);
    place.run_nano(&branch).with_code(0).prints("resuming");
    assert!(place.run_folder().join("summary.json").exists());
}

#[test]
fn a_checkpoint_starts_a_run_beside_its_own_in_the_same_second() {
    let place = Place::new();
    // A clock that stands still for a day.
    let by_day = "hydra.run.dir=outputs/${now:%Y}/${now:%m-%d}";
    let run = ["trainer.max_steps=2", by_day];
    place.run_nano(&run).with_code(0);
    let first = place.run_folder();
    let resume = format!(
        "resume={}",
        first.join("checkpoints/step-00000002").display()
    );
    let more = ["trainer.max_steps=3", by_day, &resume];
    let second = place.run_nano(&more).with_code(0);
    second.prints("starting from step 2");
    assert_eq!(place.run_folders().len(), 2);
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_the_run_keeps_its_record() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=run"])
        .with_code(0);
    let run = RunFolder(place.path().join("run"));
    let config = run.read("resolved_config.json");
    place
        .run_nano(&["trainer.max_steps=2", "resume=run", "model.hidden_size=32"])
        .with_code(2)
        .complains("model.embed_tokens.weight");
    assert_eq!(run.read("resolved_config.json"), config);
    assert!(run.join("summary.json").exists());
}

#[test]
fn a_run_made_with_another_seed_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let run = ["trainer.max_steps=1", "hydra.run.dir=run"];
    place.run_nano(&run).with_code(0);
    let folder = RunFolder(place.path().join("run"));
    let files = ["resolved_config.json", "summary.json", "metrics.jsonl"];
    let before = files.map(|name| folder.read(name));
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run", "seed=7"])
        .with_code(2)
        .complains("seed");
    assert_eq!(files.map(|name| folder.read(name)), before);
}

#[test]
fn another_experiment_in_a_named_folder_is_refused_with_its_keys_and_the_ways_out() {
    let place = Place::new();
    let run = ["trainer.max_steps=2", "hydra.run.dir=run", "lr=5e-3"];
    place.run_nano(&run).with_code(0);
    let folder = RunFolder(place.path().join("run"));
    let before = crate::harness::entries(&folder.0);
    let other = [
        "trainer.max_steps=3",
        "hydra.run.dir=run",
        "lr=1e-3",
        "data.sequence_length=16",
    ];
    place
        .run_nano(&other)
        .with_code(2)
        .complains("lr: 0.005 -> 0.001")
        .complains("data.sequence_length: 32 -> 16")
        .complains("hydra.run.dir=... (another folder)")
        .complains("resume=none moves");
    assert_eq!(crate::harness::entries(&folder.0), before);
    assert_eq!(folder.rows().len(), 3, "2 steps and a validation");

    // The way out that goes on there.
    place
        .run_nano(&[&other[..], &["resume=run"]].concat())
        .with_code(0)
        .prints("config changed since: lr: 0.005 -> 0.001");
    // And the one that begins anew.
    place
        .run_nano(&[&run[..], &["resume=none"]].concat())
        .with_code(0)
        .prints("moved the earlier run to");
}

#[test]
fn a_checkpoint_that_lacks_only_its_name_leaves_no_gap_in_the_metrics() {
    let place = Place::new();
    let run = ["trainer.checkpoint_interval=2", "hydra.run.dir=run"];
    let until = |steps| [&run[..], &[steps]].concat();
    place.run_nano(&until("trainer.max_steps=4")).with_code(0);
    let folder = RunFolder(place.path().join("run"));
    std::fs::remove_file(folder.join("summary.json")).expect("removed");
    // As a kill just before the rename leaves it.
    let checkpoints = folder.join("checkpoints");
    let temp = checkpoints.join(".tmp-step-00000004-1");
    std::fs::rename(checkpoints.join("step-00000004"), temp).expect("renamed");
    for steps in ["trainer.max_steps=6", "trainer.max_steps=8"] {
        place.run_nano(&until(steps)).with_code(0);
    }
    let rows = folder.rows().into_iter();
    let steps = rows.filter(|row| row.get("loss").is_some());
    let steps: Vec<_> = steps.map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, (1..=8).map(Some).collect::<Vec<_>>());
}

#[test]
fn another_optimizer_does_not_take_over_the_state_of_the_one_before() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run"])
        .with_code(0);
    let lion = [
        "trainer.max_steps=4",
        "resume=run",
        "trainer/optimizer=lion",
    ];
    place
        .run_nano(&lion)
        .with_code(2)
        .complains("the state of the optimizer adamw.AdamW, which is nothing to lion.Lion")
        .complains("trainer.on_optimizer_change=fresh")
        .complains("model.pretrained_url=");
    let fresh = "trainer.on_optimizer_change=fresh";
    place.run_nano(&[&lion[..], &[fresh]].concat()).with_code(0);
    // From then on the state is its own, whatever the key says.
    let run = RunFolder(place.path().join("run"));
    let state = run.final_checkpoint().join("trainer_state/state.json");
    let state: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(state).expect("a state")).expect("JSON");
    assert_eq!(state["optimizers"][0]["type"], "lion.Lion");
    assert_eq!(state["optimizer_steps"], 2);
    let longer = [
        "trainer.max_steps=5",
        "trainer/optimizer=lion",
        "resume=run",
        fresh,
    ];
    place.run_nano(&longer).with_code(0);
    let state = run.final_checkpoint().join("trainer_state/state.json");
    let state = std::fs::read_to_string(state).expect("a state");
    assert!(state.contains("\"optimizer_steps\": 3"), "{state}");
}

#[test]
fn a_longer_schedule_says_where_the_rate_jumps() {
    let place = Place::new();
    let run = |steps| {
        let warmup = "trainer.lr_scheduler.num_warmup_steps=0";
        place
            .run_nano(&[
                steps,
                "hydra.run.dir=run",
                "trainer/lr_scheduler=linear",
                warmup,
            ])
            .with_code(0)
    };
    let first = run("trainer.max_steps=4");
    assert!(!first.stdout.contains("learning rate"), "{}", first.stdout);
    run("trainer.max_steps=8").prints(
        "warning: the learning rate of step 5 is 5.000e-4, and would have been 0.000e0 before",
    );
    // An interrupted run has the rates that it had.
    let summary = place.path().join("run/summary.json");
    std::fs::remove_file(summary).expect("removed");
    let same = run("trainer.max_steps=8");
    assert!(!same.stdout.contains("learning rate"), "{}", same.stdout);
}

#[test]
fn a_checkpoint_that_does_not_fit_moves_no_earlier_run_aside() {
    let place = Place::new();
    for run in ["hydra.run.dir=a", "hydra.run.dir=b"] {
        place.run_nano(&["trainer.max_steps=1", run]).with_code(0);
    }
    let branch = ["resume=a", "hydra.run.dir=b", "model.hidden_size=32"];
    place.run_nano(&branch).with_code(2);
    assert!(place.path().join("b/summary.json").exists());
    assert!(!place.path().join("b.1").exists());
}

#[test]
fn a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is() {
    let place = Place::new();
    interrupt(&place, &["hydra.run.dir=run"]);
    let run = RunFolder(place.path().join("run"));
    let checkpoints = crate::harness::entries(&run.join("checkpoints"));
    let weights: Vec<_> = checkpoints
        .iter()
        .map(|step| step.join("model.safetensors"))
        .collect();
    for path in &weights {
        std::fs::write(path, "").expect("write");
    }
    let metrics = run.read("metrics.jsonl");
    place
        .run_nano(&["trainer.max_steps=1000000", "hydra.run.dir=run"])
        .with_code(2)
        .complains("model.safetensors has 0 bytes")
        .complains("resume=none");
    assert_eq!(run.read("metrics.jsonl"), metrics);
    for path in &weights {
        assert_eq!(std::fs::read(path).expect("read"), b"");
    }

    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=run", "resume=none"])
        .with_code(0)
        .prints("run.1");
    assert_eq!(
        RunFolder(place.path().join("run.1")).read("metrics.jsonl"),
        metrics
    );
}

#[test]
fn a_run_folder_in_use_is_refused() {
    let place = Place::new();
    let args = ["trainer.max_steps=1000000", "hydra.run.dir=run"];
    let mut running = place.start_nano(&args);
    running.wait_for_rows(&RunFolder(place.path().join("run")), 1);
    place
        .run_nano(&args)
        .with_code(2)
        .complains("in use")
        .complains("run");
    assert!(running.is_at_work());
}

/// Starts a run that would not end and stops it by SIGINT after three rows.
fn interrupt(place: &Place, more: &[&str]) {
    let mut args = vec!["trainer.max_steps=1000000"];
    args.extend(more);
    let mut running = place.start_nano(&args);
    let folder = || {
        let named = RunFolder(place.path().join("run"));
        place.run_folders().pop().unwrap_or(named)
    };
    running.wait_until(|| folder().row_count() >= 3);
    running.signal("INT");
    running.finish().with_code(130);
}

#[test]
fn the_tokenizer_stays_when_the_text_grows() {
    let place = place();
    let run = |more: &[&str]| {
        let mut args = crate::harness::nano(RUN);
        args.extend(["hydra.run.dir=run"]);
        args.extend(more);
        place.run(&args)
    };
    run(&["trainer.max_steps=7"]).with_code(0);
    let folder = RunFolder(place.path().join("run"));
    let tokenizer = || {
        std::fs::read_to_string(folder.final_checkpoint().join("tokenizer.json")).expect("a file")
    };
    let first = tokenizer();

    let more = "Quincy queues quietly quoting quizzes.\n\n".repeat(40);
    place.write("text.txt", &(text() + &more));
    run(&["trainer.max_steps=9"])
        .with_code(0)
        .prints("from step 7")
        .prints("warning: the data has changed since the checkpoint");
    assert_eq!(tokenizer(), first);
    let unchanged = run(&["trainer.max_steps=10"]).with_code(0);
    let warning = "the data has changed";
    assert!(!unchanged.stdout.contains(warning), "{unchanged:?}");

    // Such text alone would give another tokenizer, which is refused by name.
    let mut args = crate::harness::nano(RUN);
    args.extend(["hydra.run.dir=other", "trainer.max_steps=1"]);
    place.run(&args).with_code(0);
    let other = RunFolder(place.path().join("other")).final_checkpoint();
    assert_ne!(
        std::fs::read_to_string(other.join("tokenizer.json")).expect("a file"),
        first
    );
    let path = format!("data.tokenizer.path={}", other.display());
    run(&["trainer.max_steps=11", &path, "resume=run"])
        .with_code(2)
        .complains("data.tokenizer.path")
        .complains("step-00000010");
}
