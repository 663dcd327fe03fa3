//! A small model learns the embedded data.

use crate::harness::Place;

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
