//! `tpu-train diff`: variants that compute the same agree, and where they do not is named.

use std::process::ExitCode;

use serde_json::Value;

use crate::gates;
use crate::harness::{Finished, Place, Running, emulator, nano};

fn diff<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["diff"], &nano(more)[..]].concat()
}

/// The report as JSON, of variants that end with exit code `code`.
#[track_caller]
fn report(place: &Place, more: &[&str], code: i32) -> Value {
    let args = [&diff(more)[..], &["--json"]].concat();
    let finished = place.run(&args).with_code(code);
    assert_eq!(finished.stderr, "", "{more:?}");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

fn tensors(report: &Value) -> &Vec<Value> {
    report["tensors"].as_array().expect("a list")
}

/// The largest error of the tensors in a role.
fn worst(report: &Value, role: &str) -> f64 {
    let of_role = tensors(report).iter().filter(|it| it["role"] == role);
    let errors = of_role.map(|it| it["error"].as_f64().expect("finite"));
    errors.reduce(f64::max).expect("tensors in the role")
}

#[test]
fn a_run_is_equal_to_itself_in_every_element_of_every_tensor() {
    let place = Place::new();
    let report = report(&place, &["--b", "device.threads=null"], 0);
    assert_eq!(report["agrees"], true);
    assert_eq!(report["first_divergence"], Value::Null);
    assert_eq!(report["notes"], serde_json::json!([]));
    for tensor in tensors(&report) {
        assert_eq!(tensor["is_equal"], true, "{tensor}");
    }
    let count = |role: &str| {
        tensors(&report)
            .iter()
            .filter(|it| it["role"] == role)
            .count()
    };
    // Two blocks of twelve modules, the embedding and the last norm; ids have no gradient.
    assert_eq!((count("input"), count("output")), (26, 26));
    assert_eq!(
        (count("output_gradient"), count("input_gradient")),
        (26, 25)
    );
    // Two blocks of twelve weights, the embedding and the last norm.
    assert_eq!(
        (count("weight_gradient"), count("update"), count("loss")),
        (26, 26, 1)
    );
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn what_changes_no_number_agrees_bit_for_bit() {
    let place = Place::new();
    let report = report(
        &place,
        &["model.hidden_dropout=0.1", "--b", "model/remat=full"],
        0,
    );
    for tensor in tensors(&report) {
        assert_eq!(tensor["is_equal"], true, "{tensor}");
    }
    assert_eq!(report["unmatched"], serde_json::json!({"a": [], "b": []}));
}

#[test]
fn precisions_differ_by_their_rounding_and_no_more() {
    let place = Place::new();
    for (precision, least) in [("bf16", 1e-3), ("fp16", 1e-4)] {
        let variant = format!("precision={precision}");
        let report = report(&place, &["--a=precision=f32", "--b", &variant], 0);
        let role = |role| worst(&report, role);
        assert!(role("output") > least, "{precision}: {}", role("output"));
        assert!(role("weight_gradient") > least, "{precision}");
        // The bounds are those of the tolerance, several times what rounding does to a model of this size.
        let reaches =
            |it: &&Value| it["error"].as_f64() > it["allowed"].as_f64().map(|it| it / 2.0);
        let near = tensors(&report).iter().find(reaches);
        assert_eq!(near, None, "{precision}");
        assert!(report["tolerance"].is_object());
    }
    // The same rounding twice is the same.
    let same = report(&place, &["precision=bf16", "--b", "model/remat=full"], 0);
    assert!(tensors(&same).iter().all(|it| it["is_equal"] == true));
}

#[test]
fn a_tolerance_can_be_chosen() {
    let place = Place::new();
    let report = report(&place, &["--b=precision=bf16", "--tolerance=1e-5"], 1);
    let first = &report["first_divergence"];
    // A row of the embedding is f32 in both; the first norm rounds it.
    assert_eq!(first["tensor"], "model.layers.0.input_layernorm", "{first}");
    assert_eq!(first["role"], "output");
    assert_eq!(first["class"], "RmsNorm");
}

#[test]
fn another_optimizer_shows_in_the_updates_alone() {
    let place = Place::new();
    let key = "trainer.optimizer.kwargs.weight_decay";
    let variants = [format!("{key}=0.0"), format!("{key}=10.0")];
    let report = report(&place, &["--a", &variants[0], "--b", &variants[1]], 1);
    for role in ["output", "loss", "output_gradient", "weight_gradient"] {
        assert_eq!(worst(&report, role), 0.0, "{role}");
    }
    assert_eq!(report["first_divergence"]["role"], "update");
    place
        .run(&diff(&["--a", &variants[0], "--b", &variants[1]]))
        .with_code(1)
        .prints("first divergence: the update of `model.embed_tokens.weight`")
        .prints("computed by the optimizer");
}

#[test]
fn adapters_are_compared_with_their_zeros() {
    let place = Place::new();
    let report = report(&place, &["model/adapter=lora", "--b", "seed=42"], 0);
    let updates = tensors(&report).iter().filter(|it| it["role"] == "update");
    let updates: Vec<_> = updates.map(|it| it["tensor"].as_str().unwrap()).collect();
    assert!(
        !updates.is_empty() && updates.iter().all(|it| it.contains("lora")),
        "{updates:?}"
    );
}

#[test]
fn a_report_says_the_same_every_time() {
    let place = Place::new();
    let args = ["--b", "precision=bf16", "--markdown=report.md"];
    let first = report(&place, &args, 0);
    let markdown = std::fs::read_to_string(place.path().join("report.md")).unwrap();
    assert_eq!(report(&place, &args, 0), first);
    assert_eq!(
        std::fs::read_to_string(place.path().join("report.md")).unwrap(),
        markdown
    );
}

#[test]
fn wrong_requests_are_refused_with_what_is_wrong() {
    let place = Place::new();
    let refused = |more: &[&str], text: &str| {
        place.run(&diff(more)).with_code(2).complains(text);
    };
    refused(&[], "`diff` needs `--b OVERRIDE`");
    refused(&["--a=precision=bf16"], "`diff` needs `--b OVERRIDE`");
    refused(&["--b=x", "--c=y"], "unknown flag `--c`");
    refused(&["--b=precision"], "precision");
    refused(&["--b", "precison=bf16"], "did you mean `precision`?");
    refused(&["--b", "precision=bf15"], "in variant B");
    refused(&["--a", "precision=bf15", "--b="], "in variant A");
    refused(
        &["--b", "model.hidden_size=128"],
        "their parameters differ: `model.embed_tokens.weight` is [1024, 64] in A and [1024, 128] in B",
    );
    refused(
        &["--b", "model.num_hidden_layers=1"],
        "their parameters differ: `model.layers.1.input_layernorm.weight` is [64] in A and none in B",
    );
    refused(
        &["--b", "data.sequence_length=16"],
        "2 x 32 tokens in A and 2 x 16 in B",
    );
    refused(&["--b", "seed=1"], "their first batches differ");
    refused(
        &["--b", "device.threads=1"],
        "`device.threads` must be the same",
    );
    refused(
        &["--b", "device.isa=generic"],
        "`device.isa` must be the same",
    );
    place
        .run(&nano(&["--b", "lr=1"]))
        .with_code(2)
        .complains("`--b` is for `diff`, not for `train`");
}

/// The report on a model that is sound in A and has `fault` in B, which changes `more` besides.
fn planted_beside(fault: &str, more: &str) -> String {
    let place = Place::new();
    let path = place.path().join("report.md");
    let markdown = format!("--markdown={}", path.display());
    let b = format!("model.faulty_layer=1 model.fault={fault} {more}");
    let args = [
        "diff",
        "+model=gates",
        "+trainer=lm",
        "data.sequence_length=16",
        "--b",
        &b,
        &markdown,
    ];
    let code = gates::app().run(args.map(Into::into));
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(1)));
    std::fs::read_to_string(path).expect("a report")
}

fn planted(fault: &str) -> String {
    planted_beside(fault, "")
}

#[track_caller]
fn says(report: &str, texts: &[&str]) {
    for text in texts {
        assert!(report.contains(text), "no {text:?} in:\n{report}");
    }
}

#[test]
fn a_faulty_module_is_named() {
    says(
        &planted("forward"),
        &[
            "first divergence: the output of `layers.1.gate` (Gate [4, 16, 32]), relative L2 difference 1.0e-3, 1.0e-4 allowed",
            "computed by `layers.1.gate` (Gate); the 11 tensors before it agree, last the input of `layers.1.gate`",
        ],
    );
}

#[test]
fn a_fault_between_modules_is_named_by_what_it_stands_between() {
    says(
        &planted("between"),
        &[
            "first divergence: the input of `layers.1.down` (Linear [4, 16, 32])",
            "computed by the model itself",
            "agree, last the output of `layers.1.gate`",
        ],
    );
}

#[test]
fn a_fault_in_the_backward_pass_is_named() {
    says(
        &planted("backward"),
        &[
            "first divergence: the gradient of the input of `layers.1.gate` (Gate [4, 16, 32])",
            "computed by `layers.1.gate` (Gate) in the backward pass",
            "agree, last the gradient of the output of `layers.1.gate`",
        ],
    );
}

#[test]
fn a_nan_is_a_divergence_where_it_comes_up() {
    says(
        &planted("undefined"),
        &[
            "first divergence: the output of `layers.1.gate` (Gate [4, 16, 32]), 2048 elements are not finite in one variant",
            "B did not apply the step",
        ],
    );
}

#[test]
fn several_ranks_compute_what_one_computes() {
    let place = Place::new();
    let zero3 = "device.ranks=4 model/sharding=zero3";
    let hybrid = "ici_mesh.fsdp=2 ici_mesh.data=2 model/sharding=hybrid";
    for (a, b, more) in [
        ("device.ranks=1", zero3, &[][..]),
        // The last of three micro-batches on two ranks has a rank run it for nothing.
        (
            "device.ranks=2 model/sharding=zero2",
            "device.ranks=3 model/sharding=zero1",
            &["trainer/optimizer=muon"],
        ),
        ("", hybrid, &["precision=bf16", "model/adapter=lora"]),
    ] {
        let more = [more, &["trainer.micro_batch_size=1", "--a", a, "--b", b]].concat();
        let report = report(&place, &more, 0);
        assert_eq!(report["unmatched"], serde_json::json!({"a": [], "b": []}));
        let ranks = report["variants"]["b"]["ranks"].as_u64().expect("a number");
        assert_eq!(report["batch"]["micro_batches"], ranks);
        let of_role =
            |role: &'static str| tensors(&report).iter().filter(move |it| it["role"] == role);
        let losses: Vec<_> = of_role("loss")
            .map(|it| it["micro_batch"].clone())
            .collect();
        let expected: Vec<_> = (0..ranks).map(Value::from).collect();
        assert_eq!(losses, expected, "each on the rank that ran it");
        // Outputs are made of whole weights, and gradients are sums of all ranks'.
        assert!(worst(&report, "output") < 1e-2);
        let (gradients, updates) = (of_role("weight_gradient"), of_role("update"));
        assert_eq!(gradients.count(), updates.count());
        let notes = report["notes"].to_string();
        assert!(notes.contains("not compared is what a rank has"), "{notes}");
    }
}

#[test]
fn a_fault_of_one_rank_is_named_with_its_micro_batch() {
    let ranks = "device.ranks=3 model/sharding=zero3 model.faulty_rank=2";
    says(
        &planted_beside("backward", ranks),
        &[
            "first divergence: the gradient of the input of `layers.1.gate` (Gate [",
            ", micro-batch 2)",
            "in 3 micro-batches",
        ],
    );
    // One that is in no module shows in what is summed.
    says(
        &planted_beside("head", ranks),
        &[
            "first divergence: the gradient of the weight of `embedding.weight`",
            "computed by `embedding` (Embedding) in the backward pass, and summed over 3 micro-batches",
        ],
    );
}

/// A comparison of the CPU with one core of the TPU, its kernel `skipped` left out; `None` where there is no TPU.
fn on_tpu(skipped: Option<&str>, more: &[&str]) -> Option<Finished> {
    let _alone = emulator()?;
    let place = Place::new();
    let small = [
        "data.sequence_length=16",
        "trainer.micro_batch_size=1",
        "trainer.global_batch_size=1",
        "model.num_hidden_layers=1",
        "--a=device=cpu",
        "--b=device=tpu device.cores=1",
        "--json",
    ];
    let mut command = place.command(&diff(&[&small, more].concat()));
    if let Some(kernel) = skipped {
        command.env("TPU_TRAIN_INJECT_FAULT", format!("skip:{kernel}"));
    }
    Some(Running::start(command).finish())
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn the_tpu_computes_what_the_cpu_computes() {
    for precision in ["precision=f32", "precision=bf16"] {
        let Some(finished) = on_tpu(None, &[precision]) else {
            return;
        };
        let report: Value = serde_json::from_str(&finished.with_code(0).stdout).expect("JSON");
        let launches = report["tpu"]["launches"].as_object().expect("counts");
        assert!(launches.contains_key("attention"), "{launches:?}");
        println!("{precision}: {}", worst(&report, "output"));
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_kernel_that_does_nothing_is_named_by_where_it_is_used() {
    // The gradient of the values is the first that is made of what `attention_dkv` gives.
    for (kernel, role, projection) in [
        ("attention", "input", "o_proj"),
        ("attention_dkv", "output_gradient", "v_proj"),
    ] {
        let Some(finished) = on_tpu(Some(kernel), &[]) else {
            return;
        };
        let report: Value = serde_json::from_str(&finished.with_code(1).stdout).expect("JSON");
        let first = &report["first_divergence"];
        assert_eq!(first["role"], role, "{kernel}: {first}");
        assert_eq!(
            first["tensor"],
            format!("model.layers.0.self_attn.{projection}")
        );
        assert_eq!(first["within"], "model.layers.0.self_attn");
        assert_eq!(first["within_class"], "SelfAttention");
    }
}
