//! The example as a user runs it: train, go on, write, with remat and without.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const NANO: &[&str] = &[
    "+model=parallel",
    "+trainer=lm",
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "data.sequence_length=32",
    "trainer.micro_batch_size=2",
    "trainer.sample.count=0",
];

fn run(dir: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_custom-model"))
        .args(args)
        .current_dir(dir)
        .env("WANDB_MODE", "disabled") // whatever keys a developer has
        .env(
            "XDG_CACHE_HOME",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
        )
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn losses(run_dir: &Path) -> Vec<f64> {
    let rows = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let rows = rows
        .lines()
        .map(|row| serde_json::from_str::<Value>(row).unwrap());
    rows.filter_map(|row| row["loss"].as_f64()).collect()
}

#[test]
fn the_model_learns_resumes_and_writes() {
    let dir = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| run(dir.path(), &[NANO, more].concat());
    let at_once = [
        "trainer.max_steps=60",
        "lr=4e-3",
        "trainer.lr_scheduler.num_training_steps=60",
    ];
    train(&[&at_once[..], &["hydra.run.dir=whole"]].concat());
    let whole = losses(&dir.path().join("whole"));
    assert!(whole[59] < whole[0] - 1.0, "{whole:?}");

    let first = [
        "trainer.max_steps=30",
        at_once[1],
        at_once[2],
        "hydra.run.dir=parts",
    ];
    train(&first);
    train(&[&at_once[..], &["hydra.run.dir=parts", "resume=parts"]].concat());
    assert_eq!(losses(&dir.path().join("parts")), whole);

    train(&[&at_once[..], &["model/remat=full", "hydra.run.dir=remat"]].concat());
    assert_eq!(losses(&dir.path().join("remat")), whole);

    let text = run(
        dir.path(),
        &[
            "generate",
            "checkpoint=whole",
            "prompt=The",
            "max_new_tokens=8",
        ],
    );
    assert!(text.starts_with("The") && text.trim().len() > 3, "{text}");
}
