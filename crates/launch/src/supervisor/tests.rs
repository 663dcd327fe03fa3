//! With shell scripts as workers; with the true one see `tests/e2e`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use tt_tpu::flight::{FlightRecord, Wait};

use super::*;

/// A script as the worker, or as the launcher of several, with `lr=1` as its argument.
struct Script<'a> {
    script: &'a str,
    num_ranks: usize,
}

impl Supervised for Script<'_> {
    fn command(&self, resume: Option<&Path>) -> Command {
        assert_eq!(resume, None, "scripts save nothing");
        let mut command = Command::new("sh");
        command.args(["-c", self.script, "worker", "lr=1"]);
        command
    }

    fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    fn newest_checkpoint(&self, _: &Path) -> Option<(u64, PathBuf)> {
        None
    }

    fn command_line(&self, _: &Path) -> String {
        "worker lr=1".to_owned()
    }
}

/// A failure's text is all that tells of a report.
fn run(limits: Limits, script: &str) -> std::result::Result<u8, String> {
    run_ranks(1, limits, script)
}

fn run_ranks(num_ranks: usize, limits: Limits, script: &str) -> std::result::Result<u8, String> {
    let script = Script { script, num_ranks };
    super::run(&script, limits).map_err(|failure| failure.to_string())
}

/// Says that the worker has done what it was asked for, with code 0.
const ENDED: &str = r#"printf 0 > "$TPU_TRAIN_SESSION/ended""#;

#[test]
fn a_worker_that_ends_in_order_decides_the_exit_code() {
    for expected in [0, 1, 2, 75] {
        let script = format!(r#"printf {expected} > "$TPU_TRAIN_SESSION/ended"; exit {expected}"#);
        assert_eq!(run(Limits::default(), &script), Ok(expected));
    }
}

#[test]
fn a_crash_after_all_is_done_changes_nothing() {
    let script = format!("{ENDED}; kill -SEGV $$");
    assert_eq!(run(Limits::default(), &script), Ok(0));
}

#[test]
fn a_worker_that_was_told_to_stop_decides_the_exit_code_if_it_can() {
    let end = |raw| WorkerEnd::Exit(ExitStatus::from_raw(raw));
    let (exit_75, killed, terminated) = (end(75 << 8), end(9), end(15));
    // It only ever hears of SIGTERM.
    assert_eq!(exit_code(&exit_75, Some(75), Some(SIGINT)), Some(130));
    assert_eq!(exit_code(&exit_75, Some(75), Some(SIGTERM)), Some(75));
    // Before it has said anything.
    assert_eq!(exit_code(&terminated, None, Some(SIGTERM)), Some(143));
    assert_eq!(exit_code(&killed, None, Some(SIGINT)), Some(130));
    assert_eq!(exit_code(&killed, None, None), None);
    let hang = WorkerEnd::Hang {
        rank: 0,
        waited: Duration::ZERO,
    };
    assert_eq!(exit_code(&hang, None, Some(SIGTERM)), None);
}

#[test]
fn exit_code_0_out_of_order_is_a_failure() {
    let error = run(Limits::default(), "exit 0").unwrap_err();
    assert!(error.contains("exit code 0"), "{error}");
}

/// The flight record of a process that has launched three kernels and waits for the third.
fn waiting_in_launch_3() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let record = FlightRecord::create(file.path()).unwrap();
    for (sequence, op) in (1..).zip(["fill", "fill", "matmul"]) {
        record.note(sequence, op, "[2, 3] f32");
    }
    record.done(2);
    std::mem::forget(record.waiting(Wait::Launches));
    file
}

#[test]
fn a_failed_check_is_told_with_what_the_device_said_and_what_was_in_flight() {
    let flight = waiting_in_launch_3();
    let script = format!(
        r#"cd "$TPU_TRAIN_SESSION"
        echo '[ap] memory init ok' > device.log
        echo 'file.c:7: Assertion "0" failed.' >> device.log
        cp {} flight
        exit 233"#,
        flight.path().display()
    );
    let error = run(Limits::default(), &script).unwrap_err();
    for text in [
        "a check in a kernel failed",
        "it says: file.c:7: Assertion",
        "launch 3, matmul [2, 3] f32",
    ] {
        assert!(error.contains(text), "no {text:?} in {error}");
    }
    assert!(!error.contains("memory init"), "{error}");
    // There was no run folder to keep it in.
    let log = error.split("all it says is in ").nth(1).expect("a log");
    let log = Path::new(log.lines().next().unwrap());
    assert!(fs::read_to_string(log).unwrap().contains("memory init"));
    fs::remove_file(log).unwrap();
}

#[test]
fn a_worker_killed_from_outside_is_told_as_such() {
    let error = run(Limits::default(), "kill -9 $$").unwrap_err();
    assert!(error.contains("killed (signal 9)"), "{error}");
}

#[test]
fn a_wait_without_end_is_ended() {
    let limits = Limits {
        wait: Some(Duration::from_secs(1)),
        ..Limits::default()
    };
    let flight = waiting_in_launch_3();
    let script = format!(
        r#"cp {} "$TPU_TRAIN_SESSION/flight"; exec sleep 60"#,
        flight.path().display()
    );
    let started = Instant::now();
    let error = run(limits, &script).unwrap_err();
    assert!(error.contains("the device hangs"), "{error}");
    assert!(error.contains("for the launches to end"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

fn with_restarts(restarts: u32) -> Limits {
    Limits {
        restarts,
        ..Limits::default()
    }
}

#[test]
fn a_worker_is_started_again_and_may_then_end_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"cd {}; echo "$@" >> starts; if [ -e again ]; then {ENDED}; exit 0; fi; touch again; exit 233"#,
        folder.path().display()
    );
    assert_eq!(run(with_restarts(1), &script), Ok(0));
    // Nothing had been saved: it begins again as it was asked to.
    let starts = fs::read_to_string(folder.path().join("starts")).unwrap();
    assert_eq!(starts, "lr=1\nlr=1\n");
}

#[test]
fn a_worker_that_saves_nothing_between_two_failures_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo >> {}/starts; exit 233", folder.path().display());
    let error = run(with_restarts(9), &script).unwrap_err();
    assert!(error.contains("nothing was saved since"), "{error}");
    let starts = fs::read_to_string(folder.path().join("starts")).unwrap();
    assert_eq!(starts.lines().count(), 2);
}

#[test]
fn the_session_ends_with_the_worker_and_the_emulator_works_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"touch "$TPU_SCALAER_EMULATOR_WORKDIR/module.so" || exit 1
        echo "$TPU_TRAIN_SESSION" > {}/session; kill -9 $$"#,
        folder.path().display()
    );
    run(Limits::default(), &script).unwrap_err();
    let session = fs::read_to_string(folder.path().join("session")).unwrap();
    assert!(session.contains("tpu-train-session-"), "{session}");
    assert!(!Path::new(session.trim()).exists());
}

#[test]
fn of_several_ranks_the_one_whose_device_hangs_or_complains_is_named() {
    let flight = waiting_in_launch_3();
    let hangs = format!(
        r#"cp {} "$TPU_TRAIN_SESSION/rank-1/flight"; exec sleep 60"#,
        flight.path().display()
    );
    let limits = Limits {
        wait: Some(Duration::from_secs(1)),
        ..Limits::default()
    };
    let error = run_ranks(2, limits, &hangs).unwrap_err();
    assert!(error.starts_with("rank 1: the device hangs"), "{error}");
    let complains = r#"echo 'file.c:7: Assertion "0" failed.' > "$TPU_TRAIN_SESSION/rank-2/device.log"; exit 1"#;
    let error = run_ranks(3, Limits::default(), complains).unwrap_err();
    assert!(
        error.starts_with("rank 2: a check in a kernel failed"),
        "{error}"
    );
    let log = error.split("all it says is in ").nth(1).expect("a log");
    fs::remove_file(log.lines().next().unwrap()).unwrap();
    let error = run_ranks(2, Limits::default(), "exit 137").unwrap_err();
    assert!(
        error.contains("all with it: the process was killed"),
        "{error}"
    );
}
