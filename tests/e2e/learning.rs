//! A small model learns the embedded data.

use crate::harness::{Place, RunFolder};

#[test]
fn nano_learns_stories_below_the_unigram_baseline() {
    let place = Place::new();
    place
        .run_nano(&[
            "trainer.max_steps=120",
            "lr=4e-3",
            "data.sequence_length=64",
        ])
        .with_code(0)
        .prints("unigram")
        .prints("bigram");

    let summary = place.run_folder().json("summary.json");
    let loss = summary["final_val_loss"].as_f64().expect("a loss");
    let unigram = summary["unigram_nats"].as_f64().expect("a baseline");
    assert!(loss < 0.9 * unigram, "loss {loss} against {unigram}");
}

/// The final losses agree within what the golden case of bf16 allows along its curve.
#[test]
fn bf16_learns_like_f32_and_resumes_exactly() {
    const STEPS: &[&str] = &[
        "trainer.max_steps=40",
        "lr=4e-3",
        "trainer.checkpoint_interval=7",
    ];
    let place = Place::new();
    let run = |precision: &str, folder: &str| {
        let (precision, folder) = (
            format!("precision={precision}"),
            format!("hydra.run.dir={folder}"),
        );
        place
            .run_nano(&[STEPS, &[&precision, &folder]].concat())
            .with_code(0);
    };
    let folder = |name: &str| RunFolder(place.path().join(name));
    let loss = |run: &RunFolder| {
        run.json("summary.json")["final_val_loss"]
            .as_f64()
            .expect("a loss")
    };
    run("f32", "f32");
    run("bf16", "bf16");
    let (f32, bf16) = (loss(&folder("f32")), loss(&folder("bf16")));
    assert_ne!(f32, bf16, "rounding shows");
    assert!(
        (bf16 - f32).abs() <= 0.02 * f32,
        "loss {bf16} in bf16, {f32} in f32"
    );

    let mut running =
        place.start_nano(&[STEPS, &["precision=bf16", "hydra.run.dir=killed"]].concat());
    let killed = folder("killed");
    running.wait_for_rows(&killed, 12);
    running.kill();
    run("bf16", "killed");
    assert_eq!(killed.timeless_rows(), folder("bf16").timeless_rows());
}
