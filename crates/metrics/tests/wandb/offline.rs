//! Runs that are not sent as they go: on purpose, or because nobody is there.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use tt_metrics::End;
use tt_metrics::wandb::{SyncError, Synced, sync};

use crate::server::Server;
use crate::{RUN_ID, Run, assert_rows, media, row, timing};

/// An address at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[track_caller]
fn send(run: &Run, server: &Server) -> Synced {
    let environment = run.environment_of(server);
    let sent = sync(
        &[run.path().to_owned()],
        &environment,
        timing(),
        &mut |text| println!("{text}"),
    );
    let mut sent = sent.unwrap();
    assert_eq!(sent.len(), 1);
    sent.remove(0).unwrap()
}

impl Run {
    fn environment_of(&self, server: &Server) -> tt_metrics::wandb::Environment {
        tt_metrics::wandb::Environment::of([
            ("WANDB_BASE_URL", server.url.as_str()),
            ("WANDB_API_KEY", crate::KEY),
        ])
    }

    /// As if a whole upload had not been noted.
    fn forget_that_all_was_sent(&self) {
        for log in self.logs() {
            let _ = fs::remove_file(format!("{}.synced", log.display()));
        }
    }
}

#[test]
fn a_log_is_sent_later_and_never_twice() {
    let mut run = Run::new(&nobody()).with_var("WANDB_MODE", "offline");
    run.config.log_checkpoints = true;
    let mut metrics = run.start(0);
    (1..=50).for_each(|step| media::log(&mut metrics, step));
    metrics.alert(&media::alert("a"));
    metrics.checkpoint(3, &media::checkpoint(&run));
    media::show(&mut metrics);
    metrics.finish(&End::Finished).unwrap();
    assert!(run.logs()[0].to_string_lossy().contains("offline-run-"));
    let server = Server::start("");
    let sent = send(&run, &server);
    assert_eq!((sent.rows, sent.rows_there), (50, 0));
    assert_rows(&server.run(), 50);
    media::assert_media(&server.run(), 50);
    assert_eq!(media::alerts(&server), ["a"]);
    assert_eq!(server.run()["exitcode"], 0);
    // Noted, and asked of the server if it was not.
    assert_eq!(send(&run, &server).url, None);
    run.forget_that_all_was_sent();
    let before = server.run();
    let sent = send(&run, &server);
    assert_eq!((sent.rows, sent.rows_there), (0, 50));
    for file in ["history", "events", "output", "anomalies", "complete"] {
        assert_eq!(server.run()[file], before[file], "{file}");
    }
    assert_eq!(media::alerts(&server), ["a"], "they are counted");
    media::assert_artifact(&server, &run);
}

#[test]
fn an_upload_that_broke_off_is_picked_up() {
    let run = Run::new(&nobody()).with_var("WANDB_MODE", "offline");
    run.complete(1, 50, &End::Finished);
    // The first upload is two requests; the second one is refused at once.
    let server =
        Server::start("--fault-match file_stream --fault-skip 2 --fail-first 1 --fail-status 403");
    let log = run.logs().remove(0);
    let whole = fs::read(&log).unwrap();
    fs::write(&log, &whole[..whole.len() / 2]).unwrap();
    let first = send(&run, &server);
    assert!(first.rows > 5 && first.rows < 50, "{first:?}");
    assert_eq!(
        server.run()["exitcode"],
        1,
        "without an end it counts as killed"
    );
    run.forget_that_all_was_sent();
    fs::write(&log, &whole).unwrap();
    let paths = [run.path().to_owned()];
    let refused = sync(&paths, &run.environment_of(&server), timing(), &mut |_| {});
    let refused = refused.unwrap().remove(0).unwrap_err();
    assert!(
        matches!(&refused, SyncError::Stopped { why, .. } if why.contains("403")),
        "{refused}"
    );
    let last = send(&run, &server);
    assert_eq!(last.rows + first.rows, 50);
    assert_rows(&server.run(), 50);
    assert_eq!(server.run()["exitcode"], 0);
}

#[test]
fn without_a_server_the_run_goes_on_and_says_how_to_send_it() {
    let run = Run::new(&nobody());
    let started = std::time::Instant::now();
    run.complete(1, 50, &End::Finished);
    assert!(
        started.elapsed().as_secs() < 10,
        "nobody waits for a server that never was there"
    );
    let said = run.messages().join("\n");
    assert!(said.contains("not all of the run could be sent"), "{said}");
    assert!(said.contains("tpu-train sync"), "{said}");
    let server = Server::start("");
    assert_eq!(send(&run, &server).rows, 50);
    assert_rows(&server.run(), 50);
}

#[test]
fn a_server_that_dies_leaves_a_log_of_all() {
    let server = Server::start("");
    let mut run = Run::new(&server.url);
    run.config.timing.flush = 0.5;
    let mut metrics = run.start(0);
    for step in 1..=25 {
        metrics.log(row(step)).unwrap();
    }
    server.wait_for_rows();
    drop(server);
    for step in 26..=50 {
        metrics.log(row(step)).unwrap();
    }
    metrics.finish(&End::Finished).unwrap();
    let said = run.messages().join("\n");
    assert!(said.contains("tpu-train sync"), "{said}");
    // Another one, which has forgotten what it had.
    let server = Server::start("");
    assert_eq!(send(&run, &server).rows, 50);
    assert_rows(&server.run(), 50);
}

#[test]
fn a_stream_that_was_refused_is_sent_later_without_doubling() {
    let server =
        Server::start("--fault-match file_stream --fault-skip 1 --fail-first 1 --fail-status 403");
    let run = Run::new(&server.url);
    let mut metrics = run.start(0);
    for step in 1..=25 {
        metrics.log(row(step)).unwrap();
    }
    server.wait_for_rows();
    for step in 26..=50 {
        metrics.log(row(step)).unwrap();
    }
    metrics.finish(&End::Finished).unwrap();
    let stored = server.run();
    assert!(stored["history"].as_array().unwrap().len() < 50);
    assert_eq!(stored["complete"], false);
    let said = run.messages();
    let told: Vec<_> = said.iter().filter(|text| text.contains("403")).collect();
    assert_eq!(told.len(), 1, "{said:?}");
    assert!(told[0].contains("tpu-train sync"), "{told:?}");
    send(&run, &server);
    assert_rows(&server.run(), 50);
    assert_eq!(server.run()["complete"], true);
}

#[test]
fn a_folder_without_logs_is_said_to_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new("http://127.0.0.1:9");
    let error = sync(
        &[folder.path().to_owned()],
        &run.environment(),
        timing(),
        &mut |_| {},
    );
    assert!(matches!(error, Err(SyncError::NoLog(_))), "{error:?}");
}

/// The interpreter with the packages of `tests/python/requirements.txt`; `None` where there is none and none is asked for.
fn python_with_wandb() -> Option<PathBuf> {
    let python = std::env::var_os("TT_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import wandb"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python.into());
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "no wandb in {}",
        python.display()
    );
    None
}

#[test]
fn the_reference_client_sends_our_logs() {
    let Some(python) = python_with_wandb() else {
        return;
    };
    let mut run = Run::new(&nobody()).with_var("WANDB_MODE", "offline");
    run.config.log_checkpoints = true;
    // Stopped, and gone on from an earlier checkpoint: two logs of one run.
    let mut metrics = run.start(0);
    (1..=30).for_each(|step| media::log(&mut metrics, step));
    metrics.alert(&media::alert("a"));
    metrics.checkpoint(3, &media::checkpoint(&run));
    metrics.finish(&End::Stopped).unwrap();
    let mut metrics = run.start(20);
    (21..=50).for_each(|step| media::log(&mut metrics, step));
    media::show(&mut metrics);
    metrics.finish(&End::Finished).unwrap();
    let server = Server::start("");
    for log in run.logs() {
        let output = Command::new(&python)
            .args(["-m", "wandb", "sync"])
            .arg(log.parent().unwrap())
            .env("WANDB_BASE_URL", &server.url)
            .env("WANDB_API_KEY", crate::KEY)
            .env("HOME", run.path())
            .current_dir(run.path())
            .output()
            .unwrap();
        println!("{}", String::from_utf8_lossy(&output.stderr));
        let mark = format!("{}.synced", log.display());
        assert!(fs::exists(&mark).unwrap(), "{output:?}");
    }
    let stored = server.run();
    assert_rows(&stored, 50);
    assert_eq!(stored["name"], RUN_ID);
    assert_eq!(stored["exitcode"], 0);
    assert_eq!(stored["summary"]["_step"], 50);
    media::assert_media(&stored, 50);
    assert_eq!(media::alerts(&server), ["a"]);
    media::assert_artifact(&server, &run);
    // What it has sent is not sent again by us.
    assert_eq!(send(&run, &server).url, None);
    run.forget_that_all_was_sent();
    assert_eq!(send(&run, &server).rows, 0);
    assert_rows(&server.run(), 50);
}
