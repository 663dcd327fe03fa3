//! How long a run is: what decides it, what the schedule makes of it, and what goes on with it.

use crate::harness::{Finished, Place, RunFolder, nano};

/// A place with text of a few dozen rows.
fn place() -> Place {
    let place = Place::new();
    let text: String = (0..80)
        .map(|i| format!("On day {i} the cat found {} mice.\n\n", i * 7 % 31))
        .collect();
    place.write("text.txt", &text);
    place
}

fn run(place: &Place, more: &[&str]) -> (Finished, usize) {
    let mut args = nano(&[
        "data=text",
        "data.path=text.txt",
        "data.tokenizer.vocab_size=300",
        "trainer.sample.count=0",
        "hydra.run.dir=run",
    ]);
    args.extend(more);
    let finished = place.run(&args).with_code(0);
    let rows = RunFolder(place.path().join("run")).rows();
    let steps = rows.iter().filter(|row| row.get("loss").is_some()).count();
    (finished, steps)
}

/// The arguments of the command that the run says goes on with it.
fn continuation(finished: &Finished) -> Vec<&str> {
    let line = |line: &'_ str| line.starts_with("continue");
    let line = finished.stdout.lines().find(|it| line(it)).expect("a line");
    line.split_whitespace().skip(2).collect()
}

#[test]
fn epochs_alone_decide_and_the_continuation_makes_more_of_them() {
    let place = place();
    let (finished, steps) = run(&place, &["trainer.num_epochs=2"]);
    assert!((5..100).contains(&steps), "{steps}");
    // The default warmup is longer than so short a run.
    let finished = finished.prints("the learning rate still rises when the run ends");
    let longer = continuation(&finished);
    assert!(longer.contains(&"trainer.num_epochs=4"), "{longer:?}");
    place.run(&longer).with_code(0);
    let rows = RunFolder(place.path().join("run")).rows();
    let last = rows.iter().filter_map(|row| row["step"].as_u64()).max();
    assert_eq!(last, Some(2 * steps as u64));
}

#[test]
fn of_steps_and_epochs_the_first_to_end_ends_the_run_and_the_schedule() {
    let place = place();
    let warmup = "trainer.lr_scheduler.num_warmup_steps=0";
    let linear = "trainer/lr_scheduler=linear";
    let (finished, steps) = run(
        &place,
        &[
            "trainer.num_epochs=9",
            "trainer.max_steps=8",
            linear,
            warmup,
        ],
    );
    finished.prints("ended       trainer.max_steps came before the end of 9 epochs");
    assert_eq!(steps, 8);
    let (_, steps) = run(
        &place,
        &[
            "trainer.num_epochs=1",
            "trainer.max_steps=1000",
            linear,
            warmup,
            "resume=none",
        ],
    );
    let rows = RunFolder(place.path().join("run")).rows();
    let rates: Vec<_> = rows.iter().filter_map(|row| row["lr"].as_f64()).collect();
    assert_eq!(rates.len(), steps);
    let last = 1e-3 / steps as f64;
    let found = rates[steps - 1];
    assert!((found / last - 1.0).abs() < 1e-9, "{found} {last}");
}
