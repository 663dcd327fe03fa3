//! Optimizers, schedules and groups of parameters, as a user chooses them.

use serde_json::Value;

use crate::harness::{Place, RunFolder, Running, nano};

/// Several optimizers, each with a schedule of its own.
const GROUPS: &str = "\
muon:
  parameters: ['**.{self_attn,mlp}.*.weight']
  optimizer: {type: muon.Muon, kwargs: {lr: 0.02, adamw: {lr: 0.001}}}
  lr_scheduler: {type: linear, num_warmup_steps: 2, kwargs: {}}
vectors:
  parameters: ['**.bias', '**.*norm.weight']
  optimizer: {type: lion.Lion, kwargs: {lr: 0.0001, state_dtype: bf16}}
";

fn place() -> Place {
    let place = Place::new();
    place.write("configs/trainer/multiple_optimizers/three.yaml", GROUPS);
    place
}

fn step_rows(run: &RunFolder) -> Vec<Value> {
    let rows = run.rows().into_iter();
    rows.filter(|row| row.get("loss").is_some()).collect()
}

/// Runs to the end in `folder`, and gives the steps.
fn trained(place: &Place, folder: &str, more: &[&str]) -> (RunFolder, Vec<Value>) {
    let run_dir = format!("hydra.run.dir={folder}");
    place
        .run_nano(&[more, &[&run_dir, "trainer.sample.count=0"]].concat())
        .with_code(0);
    let run = RunFolder(place.path().join(folder));
    let rows = step_rows(&run);
    (run, rows)
}

/// A run that is killed on the way equals one that is not, state to the byte.
fn resumes_exactly(choice: &[&str]) {
    let place = place();
    let always = [
        "trainer.max_steps=40",
        "trainer.checkpoint_interval=4",
        "trainer.optimizer_metrics=true",
        "trainer.log_interval=3",
        "trainer.sample.count=0",
    ];
    let args = [&nano(&always)[..], choice].concat();
    let start = |folder: &str| {
        let run_dir = format!("hydra.run.dir={folder}");
        let running = place.start(&[&args[..], &[&run_dir]].concat());
        (running, RunFolder(place.path().join(folder)))
    };
    let (whole, reference) = start("whole");
    whole.finish().with_code(0);
    let (mut running, run): (Running, RunFolder) = start("killed");
    running.wait_for_rows(&run, 10);
    running.kill();
    start("killed").0.finish().with_code(0);

    assert_eq!(run.timeless_rows(), reference.timeless_rows(), "{choice:?}");
    for file in ["model.safetensors", "trainer_state/optimizer.safetensors"] {
        let read = |run: &RunFolder| std::fs::read(run.final_checkpoint().join(file)).expect(file);
        assert!(read(&run) == read(&reference), "{choice:?}: {file}");
    }
}

#[test]
fn state_in_bf16_resumes_exactly() {
    for optimizer in ["adamw", "lion", "sgd"] {
        let optimizer = format!("trainer/optimizer={optimizer}");
        resumes_exactly(&[&optimizer, "trainer.optimizer.kwargs.state_dtype=bf16"]);
    }
}

#[test]
fn optimizers_made_of_tensor_operations_resume_exactly() {
    resumes_exactly(&["trainer/optimizer=muon"]);
    resumes_exactly(&[
        "trainer/optimizer=adafactor",
        "trainer.optimizer.kwargs.beta1=0.9",
    ]);
    resumes_exactly(&["trainer/optimizer=adafactor_torch"]);
}

#[test]
fn several_optimizers_resume_exactly() {
    resumes_exactly(&[
        "+trainer/multiple_optimizers=three",
        "trainer.max_grad_value=0.01",
    ]);
}

#[test]
fn every_optimizer_learns_and_reports_how_far_weights_move() {
    let place = place();
    for (optimizer, lr, own) in [
        ("adamw", "1e-3", None),
        ("adam", "1e-3", None),
        ("sgd", "0.1", None),
        ("lion", "3e-4", Some("sign_agreement")),
        ("adafactor", "1e-3", Some("clip_divisor")),
        ("adafactor_torch", "1e-2", Some("clip_divisor")),
        ("muon", "1e-3", Some("singular_value_rms")),
        ("adagrad", "1e-2", None),
        ("rmsprop", "1e-3", None),
    ] {
        let choice = format!("trainer/optimizer={optimizer}");
        let lr = format!("lr={lr}");
        let (_, rows) = trained(
            &place,
            optimizer,
            &[
                &choice,
                &lr,
                "trainer.max_steps=30",
                "trainer.lr_scheduler.num_warmup_steps=2",
                "trainer.optimizer_metrics=true",
                "trainer.log_interval=10",
            ],
        );
        let loss = |i: usize| rows[i]["loss"].as_f64().expect("a loss");
        assert!(
            loss(29) < loss(0) - 0.1,
            "{optimizer}: {} to {}",
            loss(0),
            loss(29)
        );
        for (i, row) in rows.iter().enumerate() {
            for name in ["update_rms", "update_ratio"].into_iter().chain(own) {
                let value = row.get(name).and_then(Value::as_f64);
                let due = (i + 1) % 10 == 0;
                assert_eq!(value.is_some(), due, "{optimizer}, step {}: {name}", i + 1);
                assert!(
                    value.is_none_or(|x| x > 0.0 && x < 20.0),
                    "{optimizer}: {name} {value:?}"
                );
            }
        }
    }
}

#[test]
fn each_of_several_optimizers_has_its_rate_and_its_metrics() {
    let place = place();
    let (run, rows) = trained(
        &place,
        "three",
        &[
            "+trainer/multiple_optimizers=three",
            "trainer.max_steps=4",
            "trainer.lr_scheduler.num_warmup_steps=0",
            "trainer.optimizer_metrics=true",
            "trainer.log_interval=2",
        ],
    );
    let rate = |row: usize, name: &str| rows[row][name].as_f64().expect("a rate");
    assert_eq!(rate(1, "muon_lr"), 0.01, "half-way up");
    assert_eq!(rate(0, "main_lr"), 1e-3);
    assert_eq!(rate(0, "vectors_lr"), 1e-4);
    assert_eq!(rate(1, "lr"), rate(1, "muon_lr"), "the first one's");
    assert!(
        rows[1]["muon_singular_value_rms"]
            .as_f64()
            .expect("a metric")
            > 0.5
    );
    assert!(rows[1].get("main_update_rms").is_some() && rows[0].get("main_update_rms").is_none());

    let state = run
        .final_checkpoint()
        .join("trainer_state/optimizer.safetensors");
    let bytes = std::fs::read(state).expect("a state");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let dtype = |key: &str| {
        header[key]["dtype"]
            .as_str()
            .unwrap_or("missing")
            .to_owned()
    };
    let layer = "model.layers.0";
    assert_eq!(
        dtype(&format!("muon/momentum_buffer/{layer}.mlp.up_proj.weight")),
        "F32"
    );
    assert_eq!(
        dtype(&format!("vectors/exp_avg/{layer}.input_layernorm.weight")),
        "BF16"
    );
    assert_eq!(dtype("main/exp_avg_sq/model.embed_tokens.weight"), "F32");
    assert_eq!(dtype("main/exp_avg/model.norm.weight"), "missing");
}

#[test]
fn groups_that_leave_a_parameter_or_a_glob_over_are_refused_where_they_are_written() {
    let place = place();
    let both = "\
main:
  optimizer: {type: adamw.AdamW, kwargs: {lr: 5.0e-5}}
  lr_scheduler: {type: constant, kwargs: {}}
head:
  optimizer: {type: adamw.AdamW, kwargs: {lr: 2.0e-4}}
  lr_scheduler: {type: constant, kwargs: {}}
";
    place.write("configs/trainer/multiple_optimizers/both.yaml", both);
    let refused = |more: &[&str], message: &str, place_of_it: &str| {
        place
            .run_nano(&[more, &["hydra.run.dir=refused"]].concat())
            .with_code(2)
            .complains(message)
            .complains(place_of_it);
        assert!(!place.path().join("refused").exists());
    };
    refused(
        &["+trainer/multiple_optimizers=both"],
        "`main` and `head` would both have all parameters",
        "multiple_optimizers/both.yaml",
    );
    refused(
        &[
            "+trainer/multiple_optimizers=three",
            "trainer.multiple_optimizers.vectors.parameters=['**.bais']",
        ],
        "`**.bais` matches no trainable parameter",
        "trainer.multiple_optimizers.vectors.parameters",
    );
    refused(
        &[
            "+trainer/multiple_optimizers=three",
            "trainer.optimizer=null",
        ],
        "no optimizer has 1 of the parameters, among them `model.embed_tokens.weight`",
        "three.yaml",
    );
    refused(
        &[
            "+trainer/multiple_optimizers=three",
            "+trainer.multiple_optimizers.muon.optimizer.kwargs.momentm=0.9",
        ],
        "unknown key `momentm` for optimizer `muon.Muon`",
        "did you mean `momentum`?",
    );
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = place();
    for (more, message) in [
        (
            &["trainer.lr_scheduler.warmup_ratio=0.1"][..],
            "set one of them to null",
        ),
        (
            &[
                "trainer/lr_scheduler=constant",
                "+trainer.lr_scheduler.num_warmup_steps=5",
            ],
            "take `constant_with_warmup`",
        ),
        (
            &[
                "trainer/lr_scheduler=linear",
                "+trainer.lr_scheduler.kwargs.num_cycles=2",
            ],
            "unknown key `num_cycles` for schedule `linear`",
        ),
        (
            &["trainer.lr_scheduler.type=cosin"],
            "did you mean `cosine`?",
        ),
        (
            &[
                "trainer/lr_scheduler=polynomial",
                "trainer.lr_scheduler.kwargs.lr_end=1",
            ],
            "`trainer.lr_scheduler.kwargs.lr_end`: 1 is not less than the peak rate 0.001",
        ),
        (
            &[
                "trainer/lr_scheduler=warmup_stable_decay",
                "trainer.max_steps=50",
            ],
            "`trainer.lr_scheduler.kwargs.num_decay_steps`: 100 steps of decay after 20",
        ),
        (
            &[
                "trainer/optimizer=sgd",
                "trainer.optimizer.kwargs.nesterov=true",
                "trainer.optimizer.kwargs.momentum=0",
            ],
            "`nesterov` needs a `momentum`",
        ),
        (
            &[
                "trainer.optimizer.kwargs.state_dtype=bf16",
                "trainer.optimizer.kwargs.betas=[0.9,0.999]",
            ],
            "rounds away what a decay of 0.999 changes",
        ),
    ] {
        place.run_nano(more).with_code(2).complains(message);
        assert!(place.run_folders().is_empty());
    }
}

#[test]
fn a_schedule_spans_the_epochs_of_the_data() {
    let place = place();
    let text: String = (0..150)
        .map(|i| {
            format!(
                "On day {i} the {} cat found {} mice.\n\n",
                i * 7 % 31,
                i * 3 % 11
            )
        })
        .collect();
    place.write("text.txt", &text);
    let (run, rows) = trained(
        &place,
        "epochs",
        &[
            "data=text",
            "data.dataset.kwargs.separator=blank_line",
            "data.path=text.txt",
            "data.tokenizer.vocab_size=300",
            "trainer.num_epochs=3",
            "trainer/lr_scheduler=linear",
            "trainer.lr_scheduler.num_warmup_steps=null",
            "trainer.lr_scheduler.warmup_ratio=0.25",
        ],
    );
    let steps = rows.len();
    assert!(steps > 12, "{steps}");
    let state = std::fs::read_to_string(run.final_checkpoint().join("trainer_state/state.json"));
    let state: Value = serde_json::from_str(&state.expect("a state")).expect("JSON");
    assert_eq!(state["cursor"]["epoch"], 3, "all epochs are over");
    let warmup = (steps as f64 * 0.25).ceil() as usize;
    let rate = |step: usize| rows[step]["lr"].as_f64().expect("a rate");
    assert_eq!(rate(0), 0.0);
    assert_eq!(rate(warmup), 1e-3);
    let last = 1e-3 / (steps - warmup) as f64;
    assert!(
        (rate(steps - 1) / last - 1.0).abs() < 1e-9,
        "{} {last}",
        rate(steps - 1)
    );
}

#[test]
fn a_run_of_epochs_alone_resumes_exactly_over_the_end_of_one() {
    let place = place();
    let text: String = (0..300)
        .map(|i| format!("Day {i} has {} hours.\n\n", i * 7 % 31))
        .collect();
    place.write("text.txt", &text);
    let args = nano(&[
        "data=text",
        "data.dataset.kwargs.separator=blank_line",
        "data.path=text.txt",
        "data.tokenizer.vocab_size=300",
        "trainer.num_epochs=3",
        "trainer.checkpoint_interval=4",
        "trainer.eval_interval=null",
        "trainer.sample.count=0",
    ]);
    let start = |folder: &str| {
        let run_dir = format!("hydra.run.dir={folder}");
        let running = place.start(&[&args[..], &[&run_dir]].concat());
        (running, RunFolder(place.path().join(folder)))
    };
    let (whole, reference) = start("whole");
    whole.finish().with_code(0);
    let rows = reference.timeless_rows();
    // Killed in the second epoch.
    let (mut running, run) = start("killed");
    running.wait_for_rows(&run, rows.len() * 2 / 5);
    running.kill();
    start("killed").0.finish().with_code(0);
    assert_eq!(run.timeless_rows(), rows);
    let weights = |run: &RunFolder| {
        std::fs::read(run.final_checkpoint().join("model.safetensors")).expect("weights")
    };
    assert!(weights(&run) == weights(&reference));
}

#[test]
fn gradients_are_clipped_by_value_before_the_step() {
    let place = place();
    let (_, rows) = trained(
        &place,
        "clipped",
        &[
            "trainer/optimizer=sgd",
            "trainer.optimizer.kwargs.momentum=0",
            "lr=1",
            "trainer/lr_scheduler=constant",
            "trainer.max_grad_norm=null",
            "trainer.max_grad_value=1e-6",
            "trainer.max_steps=2",
            "trainer.optimizer_metrics=true",
            "trainer.log_interval=1",
        ],
    );
    for row in rows {
        let moved = row["update_rms"].as_f64().expect("a metric");
        assert!(moved > 1e-7 && moved < 1.1e-6, "{moved}");
        assert!(
            row["grad_norm"].as_f64().expect("a norm") > 1e-3,
            "before clipping"
        );
    }
}

#[test]
fn state_in_bf16_takes_half_the_memory_and_stays_close() {
    let place = place();
    let run = |folder: &str, dtype: &str| {
        let dtype = format!("trainer.optimizer.kwargs.state_dtype={dtype}");
        trained(&place, folder, &[&dtype, "trainer.max_steps=40"])
    };
    let (wide, wide_rows) = run("wide", "f32");
    let (narrow, narrow_rows) = run("narrow", "bfloat16");
    let size = |run: &RunFolder| {
        let state = run
            .final_checkpoint()
            .join("trainer_state/optimizer.safetensors");
        std::fs::metadata(state).expect("a state").len() as f64
    };
    let ratio = size(&narrow) / size(&wide);
    assert!((0.49..0.52).contains(&ratio), "{ratio}");
    let loss = |rows: &[Value]| rows[39]["loss"].as_f64().expect("a loss");
    let (wide, narrow) = (loss(&wide_rows), loss(&narrow_rows));
    assert!(
        wide != narrow && (narrow / wide - 1.0).abs() < 0.01,
        "{wide} {narrow}"
    );
}
