//! A process that makes a step when it is told to.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::kind::Kind;

/// Steps that are not counted: compilers compile, buffers are made.
pub const WARMUP: usize = 3;

/// A process and what it said.
pub struct Side {
    pub kind: &'static Kind,
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    seconds: Vec<f64>,
    pub losses: Vec<f64>,
}

#[derive(Deserialize)]
struct Answer {
    loss: f64,
    seconds: f64,
}

impl Side {
    /// Starts it and waits until it is ready.
    pub fn start(kind: &'static Kind, mut command: Command) -> Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = process.stdin.take();
        let from = BufReader::new(process.stdout.take().context("it is piped")?);
        let mut side = Self {
            kind,
            process,
            to,
            from,
            seconds: Vec::new(),
            losses: Vec::new(),
        };
        let ready = side.line()?;
        ensure!(
            ready == "ready",
            "said `{ready}` where `ready` was expected"
        );
        Ok(side)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "it ended");
        Ok(line.trim_end().to_owned())
    }

    /// Makes one.
    pub fn step(&mut self) -> Result<()> {
        let to = self.to.as_mut().context("it is piped")?;
        writeln!(to, "step")?;
        to.flush()?;
        let line = self.line()?;
        let answer: Answer = serde_json::from_str(&line).with_context(|| line.clone())?;
        self.losses.push(answer.loss);
        self.seconds.push(answer.seconds);
        Ok(())
    }

    /// The most memory that it had resident, in bytes.
    pub fn peak_rss_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .context("no VmHWM")?
            .parse()?;
        Ok(kib * 1024)
    }

    /// Seconds of the counted steps.
    pub fn counted(&self) -> &[f64] {
        &self.seconds[WARMUP..]
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.process.wait();
    }
}
