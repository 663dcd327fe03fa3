//! A server that behaves like W&B's, a process of its own: `mock_server.py`, which says what it can do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub struct Server {
    child: Child,
    pub url: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// With the options of `mock_server.py`, split at blanks.
    pub fn start(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|folder| folder.join("tests/wandb/mock_server.py"))
            .find(|path| path.is_file());
        let mut child = Command::new("python3")
            .arg(script.expect("the server's script"))
            .arg("--record")
            .arg(folder.path().join("requests.jsonl"))
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3, for the server of these tests");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Self { child, url, folder }
    }

    pub fn state(&self) -> Value {
        let host = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let request = format!("GET /__mock__/state HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let mut text = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        // Those of the summary; lines have no blank there.
        for word in ["NaN", "Infinity", "-Infinity"] {
            text = text.replace(&format!(": {word}"), ": null");
        }
        serde_json::from_str(&text).unwrap()
    }

    /// The only run there is.
    #[track_caller]
    pub fn run(&self) -> Value {
        let runs = self.state()["runs"].as_array().unwrap().clone();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs[0].clone()
    }

    /// Waits until it has a part of the history of the only run.
    #[allow(dead_code)] // not by all who include this file
    pub fn wait_for_rows(&self) {
        while self.state()["runs"][0]["history"]
            .as_array()
            .is_none_or(Vec::is_empty)
        {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Each request that was made.
    #[allow(dead_code)] // not by all who include this file
    pub fn requests(&self) -> Vec<Value> {
        let path: PathBuf = self.folder.path().join("requests.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a file of a run. Bare words are null.
pub fn lines(run: &Value, file: &str) -> Vec<Value> {
    let lines = run[file].as_array().unwrap().iter();
    let strict = |line: &Value| {
        let line = line.as_str().unwrap();
        line.replace("-Infinity", "null")
            .replace("Infinity", "null")
            .replace("NaN", "null")
    };
    lines
        .map(|line| serde_json::from_str(&strict(line)).unwrap())
        .collect()
}
