//! Runs that go on.

use tt_metrics::End;

use crate::server::{Server, lines};
use crate::{Run, assert_rows, row, val};

#[test]
fn a_run_that_was_stopped_and_goes_on_looks_like_one() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    run.complete(1, 30, &End::Stopped);
    // From an earlier checkpoint: steps 21 to 30 are made again, and were sent already.
    run.complete(21, 50, &End::Finished);
    let stored = server.run();
    assert_rows(&stored, 50);
    assert_eq!(stored["complete"], true);
    assert_eq!(stored["exitcode"], 0);
    let runtimes: Vec<_> = lines(&stored, "history")
        .iter()
        .map(|line| line["_runtime"].as_f64().unwrap())
        .collect();
    assert!(runtimes.is_sorted(), "{runtimes:?}");
    let events = lines(&stored, "events");
    let times: Vec<_> = events
        .iter()
        .map(|it| it["_timestamp"].as_f64().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn what_an_earlier_process_could_not_send_goes_first() {
    let server = Server::start("");
    let run = Run::new(&server.url).with_var("WANDB_MODE", "offline");
    run.complete(1, 30, &End::Stopped);
    let run = run.with_var("WANDB_MODE", "online");
    run.complete(31, 50, &End::Finished);
    assert_rows(&server.run(), 50);
}

#[test]
fn rows_beyond_the_restored_step_are_taken_back_where_they_were_not_sent() {
    let run = Run::new("http://127.0.0.1:9").with_var("WANDB_MODE", "offline");
    let mut metrics = run.start(0);
    for step in 1..=30 {
        let loss = if step > 20 { 99.0 } else { row(step).loss };
        metrics
            .log(tt_metrics::StepRecord { loss, ..row(step) })
            .unwrap();
    }
    metrics.finish(&End::Failed("it diverged".into())).unwrap();
    run.complete(21, 50, &End::Finished);
    let server = Server::start("");
    let environment = run.with_var("WANDB_BASE_URL", &server.url);
    let sent = tt_metrics::wandb::sync(
        &[environment.path().to_owned()],
        &environment.environment(),
        crate::timing(),
        &mut |_| {},
    );
    assert!(sent.unwrap().iter().all(Result::is_ok));
    assert_rows(&server.run(), 50);
}

#[test]
fn a_run_that_was_never_logged_to_wandb_is_sent_from_its_record() {
    let server = Server::start("");
    let run = Run::new(&server.url).with_var("WANDB_MODE", "disabled");
    run.complete(1, 30, &End::Stopped);
    assert_eq!(server.state()["runs"], serde_json::json!([]));
    let run = run.with_var("WANDB_MODE", "online");
    run.complete(31, 50, &End::Finished);
    assert_rows(&server.run(), 50);
}

#[test]
fn a_validation_that_was_left_out_is_not_lost() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    run.complete(1, 30, &End::Stopped);
    let mut metrics = run.start(30);
    metrics.log(val(30, 1.5)).unwrap();
    metrics.log(row(31)).unwrap();
    metrics.log(row(32)).unwrap();
    metrics.finish(&End::Finished).unwrap();
    let stored = server.run();
    assert_rows(&stored, 32);
    assert_eq!(lines(&stored, "history")[30]["val_loss"], 1.5);
    assert_eq!(stored["summary"]["val_loss"]["min"], 1.5);
}

#[test]
fn rules_about_runs_that_are_there_are_obeyed() {
    let server = Server::start("");
    let run = Run::new(&server.url).with_var("WANDB_RESUME", "must");
    run.complete(1, 3, &End::Stopped);
    assert_eq!(server.state()["runs"], serde_json::json!([]));
    assert!(run.messages().join("\n").contains("WANDB_RESUME=must"));
    let first = Run::new(&server.url).with_var("WANDB_RESUME", "never");
    first.complete(1, 3, &End::Stopped);
    assert_rows(&server.run(), 3);
    // Going on is no second beginning.
    first.complete(4, 5, &End::Finished);
    assert_rows(&server.run(), 5);
    let second = Run::new(&server.url).with_var("WANDB_RESUME", "never");
    second.complete(1, 9, &End::Finished);
    assert!(second.messages().join("\n").contains("WANDB_RESUME=never"));
    assert_rows(&server.run(), 5);
}
