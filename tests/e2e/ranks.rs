//! Runs of several ranks: what a user of `device.ranks`, the meshes and `model.sharding` sees.

use std::path::PathBuf;
use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tpu_train::Entry;
use tpu_train::metrics::{End, Record, Sink, SinkResult};

use crate::gates;
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
            &["model/sharding=zero1", "+model.sharding.prefetch=true"],
            "`model.sharding.prefetch`: true is without effect with `gather: step`",
        ),
        (
            &["model/sharding=zero3", "model.sharding.every=null"],
            "`model.sharding.reduce`: micro_batch is without effect where no parameter is shared out",
        ),
        (
            &["device.ranks=2", "dist.backend=c2c"],
            "`dist.backend`: c2c are the links between TPUs, and this run is on the CPU",
        ),
        (
            &["device=tpu", "device.ranks=3", "dist.backend=c2c"],
            "the vendor's collectives are for 2, 4 or 8 chips, and not for 3",
        ),
    ] {
        let finished = place.run(&nano(args)).with_code(2);
        assert!(finished.stderr.contains(complaint), "{}", finished.stderr);
        assert!(!place.path().join("outputs").exists());
    }
}

#[test]
fn parameters_that_are_not_shared_out_after_all_are_warned_of() {
    let place = Place::new();
    let args = ["model/sharding=zero3", "ici_mesh.data=2"];
    place.run(&[&["plan"], &nano(&args)[..]].concat()).with_code(0).prints(
        "model.sharding shares parameters out along fsdp, where the meshes have one rank: each rank holds all of them whole",
    );
}

#[test]
fn a_step_that_is_not_finite_is_explained_as_on_one_rank() {
    let place = Place::new();
    let args = [
        &RUN[..],
        &["lr=1e30", "trainer.lr_scheduler.num_warmup_steps=0"],
        &["trainer.max_steps=9", "hydra.run.dir=run"],
        &["device.ranks=3", "model/sharding=zero3"],
    ]
    .concat();
    place
        .run_nano(&args)
        .with_code(1)
        .complains("error: step 2: the loss is NaN")
        .complains("of `model.layers.0.self_attn.o_proj`, micro-batch 0 on rank 0, row 0")
        .complains("checkpoints/step-00000001");
    let run = RunFolder(place.path().join("run"));
    let report = run.json("bad_steps/step-00000002/report.json");
    // Those of all ranks.
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["rows"][0]["found"], true);
}

#[test]
fn weights_that_are_not_finite_are_named_on_whatever_rank_they_are() {
    let place = Place::new();
    let whole = [&RUN[..], &["trainer.max_steps=1", "hydra.run.dir=whole"]].concat();
    place.run_nano(&whole).with_code(0);
    let checkpoint = RunFolder(place.path().join("whole")).final_checkpoint();
    let path = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let name = "model.layers.1.mlp.gate_proj.weight";
    let data = tensors.tensor(name).expect("a weight").data();
    // In the last row, which the last rank has.
    let (at, count) = (data.as_ptr() as usize - bytes.as_ptr() as usize, data.len());
    bytes[at + count - 4..at + count].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    let url = format!("model.pretrained_url={}", checkpoint.display());
    for sharding in ["zero3", "zero1", "replicated"] {
        let sharding = format!("model/sharding={sharding}");
        let ranks = ["trainer.max_steps=2", &url, "device.ranks=2", &sharding];
        place
            .run_nano(&[&RUN[..], &ranks].concat())
            .with_code(1)
            .complains(&format!(
                "the weight `{name}` was not finite before the step: 1 NaN and 0 infinite of {}",
                count / 4
            ));
    }
}

/// Keeps how a run ended.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LastWords {
    path: PathBuf,
}

impl Sink for LastWords {
    fn record(&mut self, _record: &Record, _position: u64) -> SinkResult {
        Ok(())
    }

    fn finish(&mut self, end: &End) -> SinkResult {
        Ok(std::fs::write(&self.path, format!("{end:?}"))?)
    }
}

/// How a run of two ranks ends of which the second has `fault` in a block.
fn ended_by(fault: &str, place: &Place, more: &[&str]) -> String {
    let path = |name: &str| place.path().join(name).display().to_string();
    let own = [
        format!("hydra.run.dir={}", path("run")),
        format!("model.fault={fault}"),
        // In this process, whose environment has whatever keys a developer has.
        "+logging.sinks.wandb={type: wandb.Wandb, kwargs: {mode: disabled}}".to_owned(),
        format!(
            "+logging.sinks.last={{type: last.Words, kwargs: {{path: '{}'}}}}",
            path("end")
        ),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let gates = [
        "+model=gates",
        "+trainer=lm",
        "model.faulty_layer=1",
        "model.faulty_rank=1",
        "data.sequence_length=16",
        "trainer.max_steps=2",
        "trainer.global_batch_size=4",
        "trainer.micro_batch_size=1",
        "device.ranks=2",
        "model/sharding=zero3",
    ];
    let args = [&gates[..], &own, more].concat();
    let code = gates::app()
        .with_sink(Entry::new::<LastWords>(
            "last.Words",
            "how a run ended",
            |kwargs| Ok(Box::new(kwargs.extract::<LastWords>()?)),
        ))
        .run(args.into_iter().map(Into::into));
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(1)));
    std::fs::read_to_string(place.path().join("end")).expect("an end")
}

#[test]
fn the_rank_on_which_a_step_stops_being_finite_is_named() {
    let place = Place::new();
    let end = ended_by("undefined", &place, &[]);
    let finding = "in the output of `layers.1.gate`, micro-batch 1 on rank 1, row 0";
    assert!(end.contains(finding), "{end}");
    let run = RunFolder(place.path().join("run"));
    let report = run.json("bad_steps/step-00000001/report.json");
    assert_eq!(report["first_non_finite"]["rank"], 1);
    let rows = report["rows"].as_array().expect("rows");
    let found: Vec<_> = rows.iter().map(|row| row["found"].clone()).collect();
    let unknown = Value::Null; // behind it
    assert_eq!(found, [false.into(), true.into(), unknown.clone(), unknown]);
}

#[test]
fn a_rank_that_is_not_heard_of_is_told_with_the_step() {
    let place = Place::new();
    let end = ended_by("slow", &place, &["dist.timeout_seconds=1"]);
    assert!(end.contains("step 1: "), "{end}");
    assert!(end.contains("nothing was heard of rank 1 for 1 s"), "{end}");
}

/// Sums of parts, and each part counted once.
#[test]
fn metrics_of_optimizers_and_histograms_are_those_of_one_rank() {
    let place = Place::new();
    for optimizer in ["lion", "muon", "adafactor"] {
        let optimizer_arg = format!("trainer/optimizer={optimizer}");
        let run = |name: &str, more: &[&str]| {
            let dir = format!("{optimizer}-{name}");
            let dir_arg = format!("hydra.run.dir={dir}");
            let own = [
                "trainer.max_steps=2",
                "trainer.log_interval=1",
                "trainer.optimizer_metrics=true",
                "logging.histogram_interval=2",
                &optimizer_arg,
                &dir_arg,
            ];
            place
                .run_nano(&[&RUN[..], &own, more].concat())
                .with_code(0);
            RunFolder(place.path().join(dir))
        };
        let one = run("one", &[]);
        let hybrid = [
            "ici_mesh.fsdp=2",
            "ici_mesh.data=2",
            "model/sharding=hybrid",
        ];
        for (name, more) in [
            ("zero3", &["device.ranks=3", "model/sharding=zero3"][..]),
            ("hybrid", &hybrid),
            ("replicated", &["device.ranks=2"]),
        ] {
            let ranks = run(name, more);
            assert_same_metrics(&one, &ranks);
            assert_same_histograms(&one, &ranks);
        }
    }
}

#[track_caller]
fn assert_same_metrics(one: &RunFolder, ranks: &RunFolder) {
    let row = &one.rows()[0];
    let keys = row.as_object().expect("a row").keys();
    let is_metric = |key: &&String| {
        let suffixes = ["_rms", "_ratio", "_agreement", "_divisor"];
        suffixes.iter().any(|suffix| key.ends_with(suffix))
    };
    let keys: Vec<_> = keys.filter(is_metric).collect();
    assert!(keys.len() >= 2, "{row}");
    for key in keys {
        let (expected, found) = (numbers(one, key), numbers(ranks, key));
        assert_eq!(found.len(), expected.len(), "{key}");
        for ((step, found), (_, expected)) in found.into_iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 2e-3 * expected,
                "{key} of step {step}: {found}, {expected}"
            );
        }
    }
}

#[track_caller]
fn assert_same_histograms(one: &RunFolder, ranks: &RunFolder) {
    let read = |run: &RunFolder| -> Vec<Value> {
        let step: Value = serde_json::from_str(run.read("histograms.jsonl").trim()).expect("JSON");
        step["histograms"].as_array().expect("a list").clone()
    };
    let (expected, found) = (read(one), read(ranks));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let name = &expected["name"];
        assert_eq!(&found["name"], name);
        let number = |it: &Value, key: &str| it[key].as_f64().expect("a number");
        let size = number(expected, "sum_squares").sqrt();
        for key in ["min", "max"] {
            let error = (number(found, key) - number(expected, key)).abs();
            assert!(error <= 1e-3 * size, "{key} of {name}");
        }
        let error = (number(found, "sum_squares").sqrt() - size).abs();
        assert!(error <= 1e-3 * size, "{name}");
        let counts = |it: &Value| -> Vec<u64> {
            let counts = it["counts"].as_array().expect("a list").iter();
            counts.map(|it| it.as_u64().expect("a number")).collect()
        };
        let (found, expected) = (counts(found), counts(expected));
        let all: u64 = expected.iter().sum();
        assert_eq!(found.iter().sum::<u64>(), all, "{name}");
        // Rounding puts some into the next bin.
        let pairs = found.iter().zip(&expected);
        let moved: u64 = pairs.map(|(a, b)| a.abs_diff(*b)).sum();
        assert!(moved <= 2 + all / 50, "{moved} of {all} in {name}");
    }
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
