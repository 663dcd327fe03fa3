//! Data in which there is now and then nothing to predict.

use crate::harness::{Place, RunFolder};

/// Each document is two bytes and an end: of three rows of two tokens, one has an end and a beginning, and no target.
const ARGS: &[&str] = &[
    "data=text",
    "data.dataset.kwargs.separator=blank_line",
    "data.path=a.txt",
    "data.tokenizer.vocab_size=257",
    "data.sequence_length=2",
    "trainer.global_batch_size=1",
    "trainer.micro_batch_size=1",
    "trainer.checkpoint_interval=5",
];

fn place() -> Place {
    let place = Place::new();
    let documents: Vec<_> = (b'a'..=b'z')
        .map(|c| format!("{}x", char::from(c)))
        .collect();
    place.write("a.txt", &documents.join("\n\n"));
    place
}

fn run(place: &Place, dir: &str, steps: u32) -> (String, RunFolder) {
    let (dir, steps) = (
        format!("hydra.run.dir={dir}"),
        format!("trainer.max_steps={steps}"),
    );
    let run = place
        .run_nano(&[ARGS, &[&dir, &steps]].concat())
        .with_code(0);
    let folder = RunFolder(place.path().join(&dir["hydra.run.dir=".len()..]));
    (run.stdout + &run.stderr, folder)
}

#[test]
fn batches_without_a_target_are_no_steps_and_are_said() {
    let place = place();
    let (said, whole) = run(&place, "whole", 20);
    assert!(
        said.contains("nothing to predict in 1 global batches so far"),
        "{said}"
    );
    assert!(
        said.contains("nothing to predict in 8 global batches so far"),
        "{said}"
    );
    let rows = whole.rows();
    let losses: Vec<_> = rows.iter().filter_map(|row| row["loss"].as_f64()).collect();
    assert_eq!(losses.len(), 20);
    assert!(losses.iter().all(|&loss| loss > 0.0), "{losses:?}");
    let norms = rows.iter().filter_map(|row| row["grad_norm"].as_f64());
    assert!(norms.into_iter().all(|norm| norm > 0.0));

    // A run that goes on passes over the same.
    run(&place, "parts", 7);
    let (_, parts) = run(&place, "parts", 20);
    let steps = |run: &RunFolder| -> Vec<_> {
        let rows = run.timeless_rows().into_iter();
        rows.filter(|row| row.contains("grad_norm")).collect()
    };
    assert_eq!(steps(&parts), steps(&whole));
}
