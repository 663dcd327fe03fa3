//! The example as a user runs it: on the CPU, planned, recomputed, and on the emulated TPU in both modes of launches.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tpu_train::tpu::sdk::Sdk;

const NANO: &[&str] = &[
    "+model=feed_forward",
    "+trainer=lm",
    "model.hidden_size=32",
    "data.sequence_length=16",
    "data.num_val_blocks=1",
    "trainer.global_batch_size=2",
    "trainer.micro_batch_size=2",
    "trainer.sample.count=0",
];

fn run(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_custom-kernel"));
    command
        .args(args)
        .current_dir(dir)
        .env("WANDB_MODE", "disabled") // whatever keys a developer has
        .env(
            "XDG_CACHE_HOME",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
        );
    // In the cache just replaced it would not be found.
    if let Ok(sdk) = Sdk::find(None) {
        command.env("SOPHGO_SDK", sdk.folder);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The losses of a run in `folder`.
fn train(dir: &Path, folder: &str, more: &[&str]) -> Vec<f64> {
    let run_dir = format!("hydra.run.dir={folder}");
    run(dir, &[NANO, more, &[&run_dir]].concat());
    let rows = std::fs::read_to_string(dir.join(folder).join("metrics.jsonl")).unwrap();
    let rows = rows
        .lines()
        .map(|row| serde_json::from_str::<Value>(row).unwrap());
    rows.filter_map(|row| row["loss"].as_f64()).collect()
}

#[test]
fn it_learns_on_the_cpu_with_remat_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let steps = ["trainer.max_steps=40", "lr=1e-2"];
    let losses = train(dir.path(), "whole", &steps);
    assert!(losses[39] < losses[0] - 1.0, "{losses:?}");
    let again = train(
        dir.path(),
        "again",
        &[&steps[..], &["model/remat=full"]].concat(),
    );
    assert_eq!(again, losses);
}

/// A block keeps its input, what the activation is of, and what it gives: 32 tokens of 32 + 128 + 128 numbers.
#[test]
fn a_plan_counts_it() {
    let dir = tempfile::tempdir().unwrap();
    let activations = |layers: &str| {
        let told = run(dir.path(), &[&["plan", "--json"], NANO, &[layers]].concat());
        let told: Value = serde_json::from_str(&told).unwrap();
        let bytes = told["memory_bytes"]["activations"].as_u64();
        bytes.expect("a number")
    };
    let a_block = activations("model.num_layers=3") - activations("model.num_layers=2");
    assert_eq!(a_block, 32 * (32 + 128 + 128) * 4);
}

#[test]
fn on_the_tpu_it_follows_the_cpu_with_the_same_bits_in_both_modes() {
    if !tt_testkit::has_tpu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let steps = ["trainer.max_steps=3", "lr=1e-2"];
    let tpu = [
        &steps[..],
        &["device=tpu", "device.cores=2", "device.fallback=error"],
    ]
    .concat();
    let cpu = train(dir.path(), "cpu", &steps);
    let eager = train(dir.path(), "eager", &tpu);
    let batch = train(
        dir.path(),
        "batch",
        &[&tpu[..], &["device.mode=batch"]].concat(),
    );
    assert_eq!((cpu.len(), &batch), (3, &eager));
    for (there, here) in eager.iter().zip(&cpu) {
        assert!((there - here).abs() <= 1e-4 * here, "{eager:?} {cpu:?}");
    }
}

/// What the page on kernels shows is in this example, as it stands.
#[test]
fn the_page_shows_the_example() {
    let page = include_str!("../../../docs/tpu-kernels.md");
    let sources = [
        include_str!("../kernels/bias_gelu.c"),
        include_str!("../src/bias_gelu.rs"),
        include_str!("../build.rs"),
    ];
    let blocks = page.split("```").skip(1).step_by(2);
    let code = blocks.filter_map(|block| {
        let (language, code) = block.split_once('\n')?;
        ["c", "rust,ignore"].contains(&language).then_some(code)
    });
    let code: Vec<&str> = code.collect();
    assert!(code.len() >= 4, "{} blocks", code.len());
    for block in code {
        let is_shown = sources.iter().any(|source| source.contains(block));
        assert!(is_shown, "not in the example:\n{block}");
    }
}
