//! `tpu-train bench`: figures that fit together, and nothing left behind.

use serde_json::Value;

use crate::harness::{Place, Running, nano};

/// Short.
const BRIEF: &[&str] = &["bench.warmup=1", "bench.steps=2", "bench.seconds=60"];

/// The figures of a kind, measured of [`nano`] with `more` in a folder that is empty before and after.
#[track_caller]
fn bench(kind: &str, more: &[&str]) -> Value {
    let place = Place::new();
    let args = [&["bench", kind, "--json"], &nano(BRIEF)[..], more].concat();
    let finished = place.run(&args).with_code(0);
    assert_eq!(finished.stderr, "", "{args:?}");
    assert_eq!(finished.stdout.lines().count(), 1, "{}", finished.stdout);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    let figures: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(figures["bench"], kind);
    assert_eq!(figures["version"], env!("CARGO_PKG_VERSION"));
    assert!(figures["threads"].as_u64() >= Some(1), "{figures}");
    assert!(figures["isa"].is_string(), "{figures}");
    figures
}

#[track_caller]
fn number(figures: &Value, key: &str) -> f64 {
    let number = figures[key].as_f64();
    let number = number.unwrap_or_else(|| panic!("no `{key}` in {figures}"));
    assert!(number > 0.0, "`{key}` in {figures}");
    number
}

#[track_caller]
fn assert_close(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-6, "{a} for {b}");
}

/// What `plan` counts of the same step.
fn planned_flops(more: &[&str]) -> f64 {
    let place = Place::new();
    let args = [&["plan", "--json"], &nano(more)[..]].concat();
    let finished = place.run(&args).with_code(0);
    let plan: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    number(&plan["step"], "flops")
}

#[test]
fn a_step_is_told_in_figures_that_fit_together() {
    let figures = bench("step", &["device.threads=1", "precision=bf16"]);
    assert_eq!(figures["steps"], 2);
    assert_eq!(figures["threads"], 1);
    assert_eq!(figures["precision"], "bf16");
    let shape = &figures["shape"];
    assert_eq!(shape["hidden_size"], 64);
    assert_eq!(shape["global_batch_size"], 4);
    assert_eq!(shape["micro_batch_size"], 2);
    assert_eq!(shape["sequence_length"], 32);
    let step_ms = number(&figures, "step_ms");
    assert_close(
        number(&figures, "tokens_per_second"),
        4.0 * 32.0 / (step_ms / 1e3),
    );
    let parts = ["forward_ms", "backward_ms", "optimizer_ms"].map(|key| number(&figures, key));
    assert!(parts.iter().sum::<f64>() <= step_ms, "{figures}");
    assert!(number(&figures, "fastest_step_ms") <= step_ms);
    assert!(number(&figures, "slowest_step_ms") >= step_ms);
    let gflops = number(&figures, "gflops");
    assert_close(
        number(&figures, "share_of_peak"),
        gflops / number(&figures, "peak_gflops"),
    );
    // What `plan` counts makes the scores of attention once more in the backward pass.
    let of_a_step = gflops * step_ms * 1e6;
    let planned = planned_flops(&[]);
    assert!((0.9 * planned..planned).contains(&of_a_step), "{of_a_step}");
    assert!(number(&figures, "peak_rss_bytes") > 1e6);
}

#[test]
fn the_peak_may_be_given() {
    let figures = bench("step", &["device.peak_tflops=0.5"]);
    assert_eq!(figures["peak_gflops"], 500.0);
}

#[test]
fn the_shapes_need_nothing_else_and_a_step_is_what_is_measured() {
    let place = Place::new();
    let args = ["bench", "bench=s", "bench.warmup=0", "bench.steps=1"];
    // Rows of 16 tokens: a debug build.
    let small = ["data.sequence_length=16", "--json"];
    let finished = place.run(&[&args[..], &small].concat()).with_code(0);
    let figures: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(figures["bench"], "step");
    assert_eq!(figures["model"], "qwen2.Qwen2ForCausalLM");
    assert_eq!(figures["shape"]["vocab_size"], 8192);
    assert_eq!(figures["shape"]["global_batch_size"], 8);
    assert_eq!(figures["tokens_per_step"], 8 * 16);
}

#[test]
fn another_model_takes_a_shape() {
    let place = Place::new();
    for args in [["+model=llama", "bench=s"], ["bench=s", "model=llama"]] {
        let show = ["bench", "--cfg=job", "--package=model"];
        let finished = place.run(&[&show[..], &args].concat()).with_code(0);
        finished.prints("type: llama.").prints("hidden_size: 256");
    }
}

#[test]
fn the_shapes_have_the_sizes_that_they_are_known_by() {
    let place = Place::new();
    for (shape, millions, gflops) in [("s", 5.1, 65.0), ("m", 26.8, 354.0), ("l", 88.0, 554.0)] {
        let chosen = format!("bench={shape}");
        let args = ["plan", "--json", "+trainer=lm", &chosen];
        let finished = place.run(&args).with_code(0);
        let plan: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let parameters = number(&plan["parameters"], "total") / 1e6;
        assert!((parameters / millions - 1.0).abs() < 0.02, "{parameters}");
        let flops = number(&plan["step"], "flops") / 1e9;
        assert!((flops / gflops - 1.0).abs() < 0.02, "{shape}: {flops}");
    }
}

#[test]
fn a_step_is_the_one_that_is_configured() {
    for more in [
        &["model/adapter=lora", "model/remat=full"][..],
        &["trainer/multiple_optimizers=muon_adamw"],
        &["precision=fp16", "trainer.loss_scale.init_scale=1024"],
    ] {
        bench("step", more);
    }
}

#[test]
fn the_operations_of_a_step_come_to_what_plan_counts() {
    for more in [&[][..], &["model/remat=full"], &["model/adapter=lora"]] {
        let figures = bench("ops", more);
        let planned = planned_flops(more);
        assert_close(number(&figures, "flops"), planned);
        let operations = figures["operations"].as_array().expect("a list");
        let sum = |key: &str| -> f64 { operations.iter().filter_map(|it| it[key].as_f64()).sum() };
        assert_close(sum("flops"), planned);
        assert_close(
            sum("ms") + number(&figures, "elsewhere_ms"),
            number(&figures, "step_ms"),
        );
        let attention = operations
            .iter()
            .find(|it| it["operation"] == "fused::attention" && it["part"] == "forward");
        // Of each layer and micro-batch.
        assert_eq!(attention.expect("attention")["calls"], 4.0);
    }
}

#[test]
fn batches_are_loaded_with_workers_and_without_and_need_no_model() {
    let place = Place::new();
    let args = ["bench", "loader", "--json", "data.num_workers=2"];
    let finished = place.run(&[&args, BRIEF].concat()).with_code(0);
    let figures: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(figures["workers"], 2);
    assert_eq!(figures["batches"], 2);
    let per_batch = number(&figures, "tokens") / 2.0;
    for of in [&figures, &figures["without_workers"]] {
        // Packed rows are full but where a document ends with the data.
        let each = number(of, "tokens_per_second") / number(of, "batches_per_second");
        assert_close(each, per_batch);
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn data_that_ends_is_loaded_to_its_end() {
    let place = Place::new();
    let row = "{\"text\": \"A text of a few words, and some more of them.\"}\n";
    place.write("given.jsonl", &row.repeat(40));
    let args = [
        "bench",
        "loader",
        "data=jsonl",
        "data.path=given.jsonl",
        "trainer.num_epochs=1",
        "data.num_val_blocks=1",
        "data.sequence_length=16",
        "bench.warmup=0",
    ];
    place.run(&args).with_code(0).prints("all that there are");
    place
        .run(&[&args[..], &["bench.warmup=99"]].concat())
        .with_code(2)
        .complains("the data ends with the 99 batches of bench.warmup");
}

#[test]
fn a_checkpoint_is_saved_and_taken_up_again() {
    for more in [&[][..], &["model/adapter=lora"]] {
        let figures = bench("checkpoint", more);
        assert_eq!(figures["saves"], 2);
        let bytes = number(&figures, "bytes");
        for name in ["save", "load"] {
            let speed = number(&figures, &format!("{name}_gb_per_second"));
            let seconds = number(&figures, &format!("{name}_seconds"));
            assert_close(speed * 1e9, bytes / seconds);
        }
        let held = number(&figures, "held_ms");
        assert!(held <= number(&figures, "save_seconds") * 1e3, "{figures}");
    }
}

#[test]
fn an_interrupted_checkpoint_leaves_no_folder() {
    let place = Place::new();
    let endless = ["bench.steps=1000000", "bench.seconds=1e6"];
    let args = [&["bench", "checkpoint"], &nano(&endless)[..]].concat();
    let mut running: Running = place.start(&args);
    running.wait_until(|| place.path().join("outputs").exists());
    running.signal("INT");
    running.finish().with_code(130);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_text_is_read_and_continued() {
    let lengths = ["bench.prompt_tokens=8", "bench.new_tokens=5"];
    let figures = bench("generate", &[&lengths[..], &["precision=bf16"]].concat());
    assert_eq!(figures["precision"], "f32");
    assert_eq!(figures["shape"]["prompt_tokens"], 8);
    assert_eq!(figures["texts"], 2);
    let prefill_ms = number(&figures, "prefill_ms");
    assert_close(
        number(&figures, "prefill_tokens_per_second"),
        8.0 / (prefill_ms / 1e3),
    );
    assert_close(
        number(&figures, "decode_tokens_per_second"),
        1e3 / number(&figures, "decode_ms_per_token"),
    );
}

#[test]
fn people_get_a_table() {
    let place = Place::new();
    for (kind, tokens, expected) in [
        ("step", "4 rows of 32 tokens", "tokens/s"),
        ("ops", "4 rows of 32 tokens", "fused::attention"),
        ("checkpoint", "4 rows of 32 tokens", "held"),
        ("generate", "a prompt of 128 tokens", "prefill"),
    ] {
        let args = [&["bench", kind], &nano(BRIEF)[..]].concat();
        let finished = place.run(&args).with_code(0).prints(expected);
        let heading = format!("{kind} of qwen2.Qwen2ForCausalLM, {tokens}, f32; ");
        assert!(finished.stdout.starts_with(&heading), "{}", finished.stdout);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    for (args, why) in [
        (
            &["bench", "stop"][..],
            "error: `bench` does not measure `stop`, did you mean `step`?: it measures step, ops, loader, checkpoint or generate",
        ),
        (&["bench", "step", "ops"], "one thing at a time"),
        (
            &["bench", "-m", "lr=1,2"],
            "`--multirun` is for `train`, not for `bench`",
        ),
        (
            &["bench", "bench=s", "device.ranks=2"],
            "`bench` measures one rank, and the configuration asks for 2",
        ),
        (&["bench"], "no model is chosen"),
        (&["bench", "bench=x"], "options of `bench`: l, m, s"),
        (&["bench", "bench=s", "bench.step=3"], "bench.step"),
        (&["bench", "bench=s", "+bench.step=3"], "unknown key `step`"),
        (
            &["bench", "generate", "bench=s", "bench.new_tokens=5000"],
            "more than the model's max_position_embeddings 4096",
        ),
        (
            &["bench", "bench=s", "device.peak_tflops=-1"],
            "-1 is no speed",
        ),
    ] {
        place.run(args).with_code(2).complains(why);
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}
