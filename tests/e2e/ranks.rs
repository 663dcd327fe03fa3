//! Runs of several ranks: what a user of `device.ranks`, the meshes and `model.sharding` sees.

use serde_json::Value;

use crate::harness::{Place, RunFolder, nano};

/// Eight micro-batches a step, which two, three and four ranks share out evenly or not.
const RUN: [&str; 6] = [
    "trainer.global_batch_size=8",
    "trainer.micro_batch_size=1",
    "trainer.eval_interval=4",
    "trainer.lr_scheduler.num_warmup_steps=2",
    "trainer.lr_scheduler.num_training_steps=20",
    "trainer.checkpoint_interval=3",
];

fn numbers(run: &RunFolder, key: &str) -> Vec<(u64, f64)> {
    let number = |row: &Value| Some((row["step"].as_u64()?, row[key].as_f64()?));
    run.rows().iter().filter_map(number).collect()
}

/// The curves are the same but for rounding, and each step is there once.
#[track_caller]
fn assert_same_curves(one: &RunFolder, other: &RunFolder) {
    assert_close_curves(one, other, 1e-5);
}

#[track_caller]
fn assert_close_curves(one: &RunFolder, other: &RunFolder, rel: f64) {
    for (key, steps_are_the_same) in [("loss", true), ("grad_norm", true), ("val_loss", false)] {
        let expected = numbers(one, key);
        let found = numbers(other, key);
        if steps_are_the_same {
            let steps = |rows: &[(u64, f64)]| rows.iter().map(|row| row.0).collect::<Vec<_>>();
            assert_eq!(steps(&found), steps(&expected), "{key}");
        }
        for (step, value) in found {
            if let Some((_, expected)) = expected.iter().find(|row| row.0 == step) {
                let error = (value - expected).abs();
                assert!(
                    error < rel * expected,
                    "{key} of step {step}: {value}, {expected}"
                );
            }
        }
    }
}

#[test]
fn ranks_train_as_one_and_leave_the_same_files() {
    let place = Place::new();
    let run = |dir: &str, more: &[&str]| {
        let dir_arg = format!("hydra.run.dir={dir}");
        let args = [&RUN[..], &["trainer.max_steps=8", &dir_arg], more].concat();
        let finished = place.run_nano(&args).with_code(0);
        (finished, RunFolder(place.path().join(dir)))
    };
    let (_, one) = run("one", &[]);
    let weights = |run: &RunFolder| {
        let file = run.final_checkpoint().join("model.safetensors");
        candle_core::safetensors::load(file, &candle_core::Device::Cpu).expect("weights")
    };
    for (dir, more) in [
        ("zero3", &["device.ranks=3", "model/sharding=zero3"][..]),
        (
            "hybrid",
            &[
                "ici_mesh.fsdp=2",
                "ici_mesh.data=2",
                "model/sharding=hybrid",
            ],
        ),
    ] {
        let (finished, ranks) = run(dir, more);
        assert_same_curves(&one, &ranks);
        assert_eq!(
            finished.stdout.matches("run folder").count(),
            1,
            "one rank talks"
        );
        let (expected, found) = (weights(&one), weights(&ranks));
        assert_eq!(found.len(), expected.len());
        for (name, expected) in expected {
            let difference = (&found[&name] - &expected).expect("the same shape");
            let norm = |it: &candle_core::Tensor| -> f32 {
                let squares = it.sqr().and_then(|it| it.sum_all());
                squares.and_then(|it| it.to_scalar()).expect("f32")
            };
            assert!(
                norm(&difference).sqrt() <= 1e-4 * norm(&expected).sqrt(),
                "{name}"
            );
        }
    }
    // The same run a second time has the same bits.
    let (_, again) = run("again", &["device.ranks=3", "model/sharding=zero3"]);
    let zero3 = RunFolder(place.path().join("zero3"));
    assert_eq!(again.timeless_rows(), zero3.timeless_rows());
}

/// On 4 ranks, 2, 3, 1 and 4 again, each time with another preset, stopped at its end, by a signal or by a kill.
#[test]
fn a_run_goes_on_under_any_layout() {
    let place = Place::new();
    let whole = [&RUN[..], &["trainer.max_steps=20", "hydra.run.dir=whole"]].concat();
    place.run_nano(&whole).with_code(0);
    let run = RunFolder(place.path().join("run"));
    for (i, (ranks, preset)) in [
        (4, "zero3"),
        (2, "zero2"),
        (3, "zero3"),
        (1, "replicated"),
        (4, "zero1"),
    ]
    .into_iter()
    .enumerate()
    {
        let steps = format!("trainer.max_steps={}", 4 * (i + 1));
        let ranks = format!("device.ranks={ranks}");
        let preset = format!("model/sharding={preset}");
        let more = [&RUN[..], &[&steps, &ranks, &preset, "hydra.run.dir=run"]].concat();
        match i {
            1 | 2 => {
                let mut running = place.start_nano(&more);
                running.wait_for_rows(&run, run.row_count() + 2);
                running.signal(if i == 1 { "KILL" } else { "TERM" });
                running.finish();
                place.run_nano(&more).with_code(0);
            }
            _ => drop(place.run_nano(&more).with_code(0)),
        }
    }
    assert_same_curves(&RunFolder(place.path().join("whole")), &run);
}

/// Muon's matrices are whole with one rank each, an adapter's base is shared out too.
#[test]
fn optimizers_of_matrices_and_adapters_are_shared_out() {
    let place = Place::new();
    for (i, (kind, rel)) in [
        // It rounds to bf16 between, so that a last bit of a gradient becomes a third digit of an update.
        ("trainer/optimizer=muon", 1e-4),
        ("trainer/optimizer=adafactor", 1e-5),
        ("model/adapter=lora", 1e-5),
    ]
    .into_iter()
    .enumerate()
    {
        let run = |dir: String, more: &[&str]| {
            let dir_arg = format!("hydra.run.dir={dir}");
            let args = [&RUN[..], &["trainer.max_steps=6", kind, &dir_arg], more].concat();
            place.run_nano(&args).with_code(0);
            RunFolder(place.path().join(dir))
        };
        let one = run(format!("one{i}"), &[]);
        let three = ["device.ranks=3", "model/sharding=zero3"];
        let ranks = run(format!("ranks{i}"), &three);
        assert_close_curves(&one, &ranks, rel);
        // Its state is taken up by another number of ranks.
        let on = [
            "device.ranks=2",
            "model/sharding=zero1",
            "trainer.max_steps=8",
        ];
        run(format!("ranks{i}"), &on);
        let one = run(format!("one{i}"), &["trainer.max_steps=8"]);
        assert_close_curves(&one, &ranks, rel);
    }
}

#[test]
fn what_cannot_be_shared_out_is_refused_before_anything_is_made() {
    let place = Place::new();
    for (args, complaint) in [
        (
            &["device.ranks=4", "ici_mesh.fsdp=3"][..],
            "the axes of ici_mesh and dcn_mesh make 3 ranks, and there are 4 (device.ranks)",
        ),
        (
            &["ici_mesh.tensor=2"],
            "nothing is spread along the axis `tensor` yet, it must be 1",
        ),
        (
            &["+model.sharding={model.layers.*.self_attn.qproj.weight: [fsdp, null]}"],
            "did you mean `model.layers.*.self_attn.q_proj.weight`?",
        ),
        (
            &["+model.sharding={gatherr: block}"],
            "`gatherr` is no key, and as a path of the model it has no list of axes",
        ),
        (
            &["device.ranks=2", "device=tpu"],
            "device.type=tpu works on one rank only, yet",
        ),
    ] {
        let finished = place.run(&nano(args)).with_code(2);
        assert!(finished.stderr.contains(complaint), "{}", finished.stderr);
        assert!(!place.path().join("outputs").exists());
    }
}

#[test]
fn a_step_that_is_not_finite_on_several_ranks_does_not_claim_to_have_been_searched() {
    let place = Place::new();
    let args = [
        &RUN[..],
        &["lr=1e30", "trainer.max_steps=9", "device.ranks=2"],
    ]
    .concat();
    let finished = place.run_nano(&args).with_code(1);
    let finished = finished.complains("device.ranks=1 makes the step again");
    assert!(
        !finished.stderr.contains("is finite"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_plan_tells_what_each_rank_takes() {
    let place = Place::new();
    let args = [
        "+model=qwen2",
        "+trainer=lm",
        "model.hidden_size=768",
        "model.intermediate_size=2048",
        "data.sequence_length=64",
        "trainer.global_batch_size=4",
        "trainer.micro_batch_size=1",
        "trainer.max_steps=1",
        "trainer.sample.count=1",
    ];
    let plan = |more: &[&str]| -> Value {
        let args = [&["plan", "--json"], &args[..], more].concat();
        let finished = place.run(&args).with_code(0);
        serde_json::from_str(&finished.stdout).expect("JSON")
    };
    let four = ["device.ranks=4", "model/sharding=zero3"];
    let (one, ranks) = (plan(&[]), plan(&four));
    let bytes = |plan: &Value, what: &str| plan["memory_bytes"][what].as_f64().expect(what);
    let parts = ["weights", "gradients", "optimizer"];
    let held = |plan: &Value| parts.iter().map(|part| bytes(plan, part)).sum::<f64>();
    assert!((held(&ranks) / held(&one) - 0.25).abs() < 0.001);
    // What is whole at once: the weights of a block and a gradient of one; a twentieth more for the rest.
    let peak = |plan: &Value| bytes(plan, "tensors_at_once");
    let others = peak(&one) - held(&one);
    let block = (bytes(&one, "weights") - 4.0 * 1024.0 * 768.0) / 4.0;
    let most = held(&one) / 4.0 + 2.0 * block;
    assert!(
        peak(&ranks) - others <= 1.05 * most,
        "{} of {most}",
        peak(&ranks) - others
    );

    let run = [&args[..], &four, &["hydra.run.dir=run"]].concat();
    place.run(&run).with_code(0);
    let summary = RunFolder(place.path().join("run")).json("summary.json");
    let measured = summary["peak_rss_bytes"].as_f64().expect("measured");
    let predicted = bytes(&ranks, "process_peak");
    let ratio = measured / predicted;
    assert!((0.85..1.1).contains(&ratio), "{measured} of {predicted}");

    // Of a mesh that is not here.
    let far = plan(&[
        "ici_mesh.fsdp=8",
        "dcn_mesh.data=64",
        "model/sharding=hybrid",
    ]);
    assert_eq!(far["ranks"]["count"], 512);
    assert!(far["ranks"]["gathered_bytes"].as_u64() > Some(0));
}
