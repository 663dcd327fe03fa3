//! The key: refused, or in the wrong hands.

use std::fs;
use std::path::Path;

use tt_metrics::End;

use crate::server::Server;
use crate::{KEY, Run, assert_rows};

#[test]
fn a_key_that_is_refused_is_said_once_and_the_run_goes_on() {
    let server = Server::start("--require-key another");
    let run = Run::new(&server.url);
    run.complete(1, 50, &End::Finished);
    let said = run.messages();
    let told: Vec<_> = said
        .iter()
        .filter(|text| text.contains("refuses the key"))
        .collect();
    assert_eq!(told.len(), 1, "{said:?}");
    assert!(
        told[0].contains("invalid API key") && told[0].contains("tpu-train sync"),
        "{told:?}"
    );
    assert_eq!(server.requests().len(), 1, "401 is final");
    let server = Server::start("");
    let run = run.with_var("WANDB_BASE_URL", &server.url);
    let paths = [run.path().to_owned()];
    let sent = tt_metrics::wandb::sync(&paths, &run.environment(), crate::timing(), &mut |_| {});
    assert!(sent.unwrap().iter().all(Result::is_ok));
    assert_rows(&server.run(), 50);
}

#[test]
fn without_a_key_the_run_is_logged_offline() {
    let run = Run::new("http://127.0.0.1:9").with_var("WANDB_API_KEY", "");
    run.complete(1, 3, &End::Finished);
    assert!(
        run.messages().join("\n").contains("no key"),
        "{:?}",
        run.messages()
    );
    assert!(run.logs()[0].to_string_lossy().contains("offline-run-"));
}

#[test]
fn a_redirect_is_not_followed_with_the_key() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = Server::start("");
    let target = format!("{}/graphql", elsewhere.url);
    let run = Run::new(&format!("http://{}", listener.local_addr().unwrap()));
    let redirecting = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let answer = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
    });
    run.complete(1, 3, &End::Finished);
    redirecting.join().unwrap();
    assert!(elsewhere.requests().is_empty());
    assert!(
        run.messages().join("\n").contains("WANDB_BASE_URL"),
        "{:?}",
        run.messages()
    );
}

#[test]
fn a_key_is_in_no_file_and_no_message() {
    let server = Server::start("");
    let run = Run::new(&server.url);
    run.complete(1, 10, &End::Finished);
    assert!(run.messages().iter().all(|text| !text.contains(KEY)));
    let mut num_files = 0;
    search(run.path(), &mut num_files);
    assert!(num_files >= 4, "{num_files}");
}

fn search(folder: &Path, num_files: &mut usize) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            search(&path, num_files);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        *num_files += 1;
        let found = bytes.windows(KEY.len()).any(|it| it == KEY.as_bytes());
        assert!(!found, "{}", path.display());
    }
}
