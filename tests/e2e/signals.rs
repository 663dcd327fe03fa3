//! Stopping a run: it saves and says by its exit code that it can go on.

use std::time::{Duration, Instant};

use crate::harness::{Place, RunFolder, Running, nano};

/// Long enough never to end by itself.
const ENDLESS: &[&str] = &["trainer.max_steps=1000000", "hydra.run.dir=run"];

fn stopped_by(signal: &str) -> (Place, crate::harness::Finished) {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let mut running = place.start_nano(ENDLESS);
    running.wait_for_rows(&run, 3);
    running.signal(signal);
    let finished = running.finish();
    (place, finished)
}

fn saved_step(place: &Place) -> u64 {
    let latest = tt_checkpoint::latest(&place.path().join("run/checkpoints"))
        .expect("a readable folder")
        .checkpoint
        .expect("a checkpoint");
    latest.step()
}

#[test]
fn sigint_saves_and_exits_130() {
    let (place, finished) = stopped_by("INT");
    finished.with_code(130).prints("continue");
    assert!(saved_step(&place) >= 3);
    assert!(
        !place.path().join("run/summary.json").exists(),
        "not finished"
    );
}

#[test]
fn sigterm_saves_and_exits_75() {
    let (place, finished) = stopped_by("TERM");
    finished.with_code(75).prints("continue");
    assert!(saved_step(&place) >= 3);
}

/// A handler that printed first, and died of it, made the run deaf to every signal.
#[test]
fn a_signal_is_obeyed_whatever_has_become_of_standard_error() {
    for (signal, code, script) in [
        ("TERM", 75, r#"exec "$@" 2>/dev/full"#),
        ("USR1", 75, r#"exec "$@" >/dev/full 2>&1"#),
        // The tests themselves may run under nohup.
        ("HUP", 75, r#"exec env --default-signal=HUP "$@" >&- 2>&-"#),
        // What Ctrl-C does to `tpu-train ... 2>&1 | tee log`: the reader is gone before the run can say a word.
        ("INT", 130, r#"exec "$@" > >(exec true) 2>&1"#),
    ] {
        let place = Place::new();
        let run = RunFolder(place.path().join("run"));
        let mut running = Running::start(place.shell(script, &nano(ENDLESS)));
        running.wait_for_rows(&run, 3);
        running.signal(signal);
        running.finish().with_code(code);
        assert!(saved_step(&place) >= 3, "{signal}");
    }
}

#[test]
fn under_nohup_a_closed_terminal_stops_nothing() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let script = r#"trap "" HUP; exec "$@""#;
    let mut running = Running::start(place.shell(script, &nano(ENDLESS)));
    running.wait_for_rows(&run, 3);
    running.signal("HUP");
    let rows = run.row_count();
    running.wait_for_rows(&run, rows + 3);
    running.signal("TERM");
    running.finish().with_code(75);
}

/// Nothing is lost that the next start would not make again, and nobody waits for a tokenizer to be trained. Here the data
/// never comes: nobody writes into the pipe.
#[test]
fn a_signal_while_the_data_is_opened_ends_the_run_at_once() {
    for (signal, code) in [("TERM", 75), ("INT", 130)] {
        let place = Place::new();
        let made = std::process::Command::new("mkfifo")
            .arg(place.path().join("book.txt"))
            .status();
        assert!(made.expect("mkfifo(1)").success());
        let mut running = place.start(&nano(&[
            "data=text",
            "data.path=book.txt",
            "hydra.run.dir=run",
        ]));
        std::thread::sleep(Duration::from_secs(1));
        assert!(running.is_at_work());
        let asked = Instant::now();
        running.signal(signal);
        running.finish().with_code(code);
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(!place.path().join("run").exists(), "still preparing");
    }
}

#[test]
fn a_stopped_run_goes_on_where_it_was() {
    let (place, finished) = stopped_by("INT");
    finished.with_code(130);
    let step = saved_step(&place);
    let max_steps = format!("trainer.max_steps={}", step + 2);
    place
        .run_nano(&["hydra.run.dir=run", &max_steps])
        .with_code(0)
        .prints(&format!("step {step}"));
    assert_eq!(saved_step(&place), step + 2);
}

#[test]
fn a_second_sigint_ends_at_once() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    // A step of seconds, most of it not waiting for data: the first signal cannot have been obeyed when the second
    // arrives.
    let mut running = place.start_nano(&[
        "trainer.max_steps=1000000",
        "hydra.run.dir=run",
        "model.hidden_size=512",
        "model.intermediate_size=2048",
        "data.sequence_length=512",
        "data.num_val_blocks=1",
        "trainer.global_batch_size=64",
        "trainer.micro_batch_size=16",
    ]);
    running.wait_until(|| run.join(".hydra/config.yaml").exists());
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.signal("INT");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(running.is_at_work(), "one signal asks, it does not kill");
    running.signal("INT");
    running.finish().with_code(130);
    assert!(!run.join("checkpoints").join("step-00000001").exists());
}
