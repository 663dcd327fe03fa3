//! The example as a user runs it.

use std::process::Command;

use serde_json::Value;

fn train(dir: &std::path::Path, more: &[&str]) -> Vec<Value> {
    let nano = [
        "+model=qwen2",
        "model/size=nano",
        "data.sequence_length=32",
        "trainer.global_batch_size=4",
        "trainer.micro_batch_size=2",
        "hydra.run.dir=run",
        "trainer.sample.count=0",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_custom-trainer"))
        .args(nano.iter().chain(more))
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
    let rows = std::fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
    let rows = rows.lines().map(|row| serde_json::from_str(row).unwrap());
    rows.filter(|row: &Value| row["loss"].is_number()).collect()
}

#[test]
fn the_focal_loss_trains_and_logs_accuracy() {
    let dir = tempfile::tempdir().unwrap();
    let rows = train(
        dir.path(),
        &["+trainer=focal", "trainer.max_steps=60", "lr=4e-3"],
    );
    let accuracy = |row: &Value| row["accuracy"].as_f64().expect("logged every step");
    assert_eq!(rows.len(), 60);
    assert!(accuracy(&rows[59]) > accuracy(&rows[0]) + 0.05);
}

#[test]
fn without_gamma_it_is_cross_entropy() {
    let losses = |args: &[&str]| -> Vec<f64> {
        let dir = tempfile::tempdir().unwrap();
        let rows = train(dir.path(), args);
        rows.iter()
            .map(|row| row["loss"].as_f64().unwrap())
            .collect()
    };
    let steps = "trainer.max_steps=5";
    let ours = losses(&["+trainer=focal", "trainer.kwargs.gamma=0", steps]);
    let theirs = losses(&["+trainer=lm", steps]);
    assert_eq!((ours.len(), theirs.len()), (5, 5));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((ours - theirs).abs() < 1e-4 * theirs, "{ours} {theirs}");
    }
}
