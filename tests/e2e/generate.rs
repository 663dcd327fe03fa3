//! A checkpoint continues a prompt.

use crate::harness::Place;

/// A run of two steps in `run`.
fn trained() -> Place {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run"])
        .with_code(0);
    place
}

#[test]
fn a_run_folder_or_a_checkpoint_continues_a_prompt() {
    let place = trained();
    let checkpoint = |path: &str| {
        let checkpoint = format!("checkpoint={path}");
        let args = [
            "generate",
            &checkpoint,
            "prompt=Long ago",
            "max_new_tokens=8",
        ];
        place.run(&args).with_code(0).stdout
    };
    let text = checkpoint("run");
    assert!(text.starts_with("Long ago"), "{text}");
    assert!(text.len() > "Long ago\n".len(), "{text}");
    assert_eq!(
        checkpoint("run/checkpoints/step-00000002"),
        text,
        "the same seed"
    );
    // A folder of checkpoints is a name for the newest of them, for whatever takes one.
    assert_eq!(checkpoint("run/checkpoints"), text);
    place
        .run(&["export", "checkpoint=run/checkpoints", "out=exported"])
        .with_code(0);
    assert_eq!(checkpoint("exported"), text);
}

#[test]
fn a_folder_without_a_model_is_refused() {
    let place = Place::new();
    place
        .run(&["generate", "checkpoint=nowhere", "prompt=a"])
        .with_code(2)
        .complains("nowhere/config.json");
}

#[test]
fn a_missing_checkpoint_is_asked_for() {
    let place = Place::new();
    place
        .run(&["generate", "prompt=a"])
        .with_code(2)
        .complains("checkpoint");
}
