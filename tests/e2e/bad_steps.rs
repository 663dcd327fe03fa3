//! A step whose numbers are not finite, from outside: what is said, what is left behind, and what goes on.

use serde_json::Value;

use crate::harness::{Place, RunFolder, entries};

/// After the first step the weights are so large that products of them are infinite.
const DIVERGES: &[&str] = &[
    "lr=1e30",
    "trainer.lr_scheduler.num_warmup_steps=0",
    "trainer.max_steps=8",
    "hydra.run.dir=run",
];

fn diverging<'a>(more: &[&'a str]) -> Vec<&'a str> {
    DIVERGES.iter().chain(more).copied().collect()
}

#[test]
fn it_is_explained_and_the_state_before_it_is_saved() {
    let place = Place::new();
    let finished = place.run_nano(DIVERGES).with_code(1);
    let finished = finished
        .complains("error: step 2: the loss is NaN")
        .complains("in the output of `model.layers.0.self_attn.o_proj`, micro-batch 0, rows 0, 1")
        .complains("bad_steps/step-00000002")
        .complains("checkpoints/step-00000001")
        .complains("trainer.bad_steps.action=skip");
    assert!(!finished.stderr.contains("backtrace"), "{finished:?}");

    let run = RunFolder(place.path().join("run"));
    let report = run.json("bad_steps/step-00000002/report.json");
    assert_eq!(report["first_non_finite"]["place"], "forward");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(4));
    assert!(
        run.read("bad_steps/step-00000002/rows.txt")
            .contains("(found)")
    );
    let checkpoint = tt_checkpoint::latest(&run.join("checkpoints")).expect("readable");
    let checkpoint = checkpoint.checkpoint.expect("a checkpoint");
    assert_eq!(checkpoint.step(), 1);
    let mut values = Vec::new();
    let weights = checkpoint.model().expect("weights");
    weights
        .read_f32("model.embed_tokens.weight", &mut values)
        .expect("a weight");
    assert!(values.iter().all(|x| x.is_finite()));
    assert!(!run.join("summary.json").exists());
}

#[test]
fn the_command_it_ends_with_goes_on() {
    let place = Place::new();
    let finished = place.run_nano(DIVERGES).with_code(1);
    let line = finished.stderr.lines().last().expect("a line");
    let arguments = line.trim().strip_prefix("tpu-train ").expect("a command");
    let arguments: Vec<_> = arguments.split(' ').chain(["lr=1e-3"]).collect();
    let useless = "the validation loss after the last step is NaN";
    place
        .run(&arguments)
        .with_code(1)
        .prints("from step 1")
        .complains(useless);
    // Skipping a batch could not have helped: those after it are as bad.
    let place = Place::new();
    place
        .run_nano(&diverging(&["trainer.bad_steps.action=skip"]))
        .with_code(1)
        .prints("skipped step 2: the loss is NaN")
        .complains(useless);
    let place = Place::new();
    place
        .run_nano(&diverging(&[
            "trainer.bad_steps.action=skip",
            "trainer.bad_steps.max_consecutive=3",
        ]))
        .with_code(1)
        .complains("step 5: the loss is NaN, after 3 skipped in a row")
        .complains("an earlier checkpoint");
}

#[test]
fn skipped_steps_are_marked_and_keep_their_place() {
    let place = Place::new();
    let skip = "trainer.bad_steps.action=skip";
    place.run_nano(&diverging(&[skip])).with_code(1);
    let run = RunFolder(place.path().join("run"));
    let rows = run.rows();
    let steps = rows.iter().filter(|row| row.get("lr").is_some());
    let marks: Vec<_> = steps
        .map(|row| (row["step"].as_u64(), row["skipped"].as_u64()))
        .collect();
    let expected: Vec<_> = (1..=8)
        .map(|step| (Some(step), (step > 1).then_some(1)))
        .collect();
    assert_eq!(marks, expected);
    assert_eq!(entries(&run.join("bad_steps")).len(), 7);
}

#[test]
fn weights_that_are_not_finite_are_named_before_any_batch() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=whole"])
        .with_code(0);
    let checkpoint = RunFolder(place.path().join("whole")).final_checkpoint();
    let path = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let name = "model.layers.1.mlp.gate_proj.weight";
    let data = tensors.tensor(name).expect("a weight").data();
    let at = data.as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");

    let url = format!("model.pretrained_url={}", checkpoint.display());
    place
        .run_nano(&["trainer.max_steps=2", &url])
        .with_code(1)
        .complains(&format!(
            "the weight `{name}` was not finite before the step: 1 NaN"
        ))
        .complains("begin with weights that are finite");
}

#[test]
fn a_spike_is_skipped_and_a_kill_changes_nothing() {
    let place = Place::new();
    // Two words over and over, but for one document.
    let plain = "tick tock tick tock tick tock tick tock.\n\n".repeat(200);
    let odd = "Zqx jvw 7#k! pfy 0@w xzj qvb 3&m kkz wqp yfh 9%d jxq vzk bgh 5*t.\n\n";
    place.write("text.txt", &format!("{plain}{odd}{plain}"));
    place.write("val.txt", &plain);
    let args = |folder| {
        [
            "data=text",
            "data.dataset.kwargs.separator=blank_line",
            "data.path=text.txt",
            "data.val_path=val.txt",
            "data.tokenizer.vocab_size=300",
            "lr=1e-2",
            "trainer.max_steps=120",
            "trainer.checkpoint_interval=5",
            "trainer.spike_guard.action=skip",
            "trainer.spike_guard.window=16",
            "trainer.spike_guard.sigma=10",
            folder,
        ]
    };
    place.run_nano(&args("hydra.run.dir=whole")).with_code(0);
    let whole = RunFolder(place.path().join("whole"));
    let is_skipped = |row: &&Value| row["skipped"] == 1;
    let skipped = whole.rows().iter().filter(is_skipped).count();
    assert!((1..20).contains(&skipped), "{skipped} steps skipped");
    let dump = entries(&whole.join("bad_steps")).remove(0);
    let report = std::fs::read_to_string(dump.join("report.json")).expect("a report");
    assert!(report.contains("standard deviations above"), "{report}");

    let mut running = place.start_nano(&args("hydra.run.dir=killed"));
    let killed = RunFolder(place.path().join("killed"));
    running.wait_for_rows(&killed, 40);
    running.kill();
    place
        .run_nano(&args("hydra.run.dir=killed"))
        .with_code(0)
        .prints("resuming");
    assert_eq!(killed.timeless_rows(), whole.timeless_rows());
}

#[test]
fn fp16_backs_off_learns_as_f32_does_and_a_kill_changes_nothing() {
    let place = Place::new();
    let args = |more: &[&'static str]| {
        let all = ["trainer.max_steps=40", "trainer.checkpoint_interval=7"];
        all.into_iter()
            .chain(more.iter().copied())
            .collect::<Vec<_>>()
    };
    let val_loss = |folder: &str| {
        let run = RunFolder(place.path().join(folder));
        run.json("summary.json")["final_val_loss"]
            .as_f64()
            .expect("a loss")
    };
    place.run_nano(&args(&["hydra.run.dir=f32"])).with_code(0);
    place
        .run_nano(&args(&["precision=fp16", "hydra.run.dir=fp16"]))
        .with_code(0);
    let difference = (val_loss("fp16") / val_loss("f32") - 1.0).abs();
    assert!(difference < 1e-3, "{difference}");

    // A scale that nothing survives at first, and that grows back to where it overflows again.
    let too_large = [
        "precision=fp16",
        "trainer.loss_scale.init_scale=1073741824",
        "trainer.loss_scale.growth_interval=5",
    ];
    let whole = [&too_large[..], &["hydra.run.dir=whole"]].concat();
    place
        .run_nano(&args(&whole))
        .with_code(0)
        .prints("skipped step 1: a gradient overflows at a loss scale of 1073741824");
    let whole = RunFolder(place.path().join("whole"));
    let rows = whole.rows();
    let steps: Vec<_> = rows.iter().filter(|row| row.get("lr").is_some()).collect();
    let scale = |row: &Value| row["loss_scale"].as_f64().expect("a scale");
    for pair in steps.windows(2) {
        if pair[0]["skipped"] == 1 {
            assert_eq!(scale(pair[1]), scale(pair[0]) / 2.0, "{pair:?}");
        }
        assert!(pair[1]["loss"].is_number(), "the loss itself is finite");
    }
    let skipped = steps.iter().filter(|row| row["skipped"] == 1).count();
    assert!((6..30).contains(&skipped), "{skipped} steps skipped");
    assert_eq!(steps[39]["skipped_steps"], skipped);
    assert!(
        !whole.join("bad_steps").exists(),
        "nothing is bad about them"
    );

    let killed = [&too_large[..], &["hydra.run.dir=killed"]].concat();
    let mut running = place.start_nano(&args(&killed));
    let run = RunFolder(place.path().join("killed"));
    running.wait_for_rows(&run, 17);
    running.kill();
    place
        .run_nano(&args(&killed))
        .with_code(0)
        .prints("resuming");
    assert_eq!(run.timeless_rows(), whole.timeless_rows());
}

#[test]
fn every_precision_names_what_is_not_finite() {
    for precision in ["precision=bf16", "precision=fp16"] {
        let place = Place::new();
        place
            .run_nano(&diverging(&[precision]))
            .with_code(1)
            .complains("error: step 2: the loss is NaN")
            .complains("it began in the forward pass, in the output of `model.");
    }
}
