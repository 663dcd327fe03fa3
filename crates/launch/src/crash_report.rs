//! What the user is told when a worker did not end in order.
//!
//! ```text
//! error: a check in a kernel failed, which ends the process
//!   it says: tpu_kernel_common.c:77: tpu_data_type_size: Assertion "0" failed.
//!   at work: launch 40, matmul m=64 n=64 ..
//!   queued behind it: 3 more
//!   all it says is in run/device.log
//!   the state before is in run/checkpoints/step-00000004; this goes on from it:
//!   tpu-train +model=qwen2 ...
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tt_tpu::flight::{Flight, Launch};

use crate::Supervised;
use crate::session::{Files, Session};

/// What the vendor's runtime ends a process with when a kernel's check fails.
const EXIT_ASSERT: i32 = 233;
/// Of the end of a log, which may be long.
const TAIL_BYTES: u64 = 64 << 10;
/// Of what the device says, and of launches.
const SHOWN: usize = 4;

const KILLED: &str = "the process was killed (signal 9): by hand, or because memory ran out";

/// How a worker ended.
#[derive(Debug)]
pub(crate) enum WorkerEnd {
    Exit(ExitStatus),
    /// It was killed after one of its ranks had waited this long for the device.
    Hang {
        rank: usize,
        waited: Duration,
    },
}

#[derive(Debug)]
pub(crate) struct CrashReport {
    headline: String,
    /// The last lines of the log that tell anything.
    log_excerpt: Vec<String>,
    flight: Flight,
    log: Option<PathBuf>,
    run: Option<PathBuf>,
    /// The newest checkpoint that is whole.
    checkpoint: Option<(u64, PathBuf)>,
    /// What goes on with the run.
    command: Option<String>,
}

impl CrashReport {
    pub(crate) fn new(end: &WorkerEnd, session: &Session, supervised: &dyn Supervised) -> Self {
        let files = session.files();
        let run = files.run();
        let of_run = run.as_deref();
        let checkpoint = of_run.and_then(|run| supervised.newest_checkpoint(run));
        let command = of_run.map(|run| supervised.command_line(run));
        let tails: Vec<String> = session.of_ranks().map(|files| tail(&files)).collect();
        let rank = rank_at_fault(end, &tails);
        let of_rank = rank.map(|rank| files.of_rank(rank));
        let text = rank.map_or("", |rank| &tails[rank]);
        let log_excerpt = excerpt(text);
        let flight = of_rank.and_then(|files| Flight::read(&files.flight()).ok());
        let flight = flight.unwrap_or_default();
        let mut headline = headline(end, &flight, &log_excerpt);
        if tails.len() > 1 {
            headline = of_several(headline, rank);
        }
        let log = rank.filter(|_| !text.is_empty());
        Self {
            headline,
            log_excerpt,
            flight,
            log: log.and_then(|rank| log_to_keep(session, rank)),
            run,
            checkpoint,
            command,
        }
    }

    pub(crate) fn run(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// The step that the run can go on from.
    pub(crate) fn step(&self) -> Option<u64> {
        self.checkpoint.as_ref().map(|(step, _)| *step)
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline)?;
        for (i, line) in self.log_excerpt.iter().enumerate() {
            let label = if i == 0 { "it says: " } else { "         " };
            write!(f, "\n  {label}{line}")?;
        }
        self.write_launches(f)?;
        if let Some(log) = &self.log {
            write!(f, "\n  all it says is in {}", log.display())?;
        }
        match (&self.checkpoint, &self.command) {
            (Some((_, path)), Some(command)) => write!(
                f,
                "\n  the state before is in {}; this goes on from it:\n  {command}",
                path.display()
            ),
            (None, Some(command)) => {
                write!(
                    f,
                    "\n  nothing was saved yet; this begins again:\n  {command}"
                )
            }
            _ => Ok(()),
        }
    }
}

impl CrashReport {
    fn write_launches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flight = &self.flight;
        let first = flight.started.unwrap_or_default().max(flight.done + 1);
        let Some(behind) = flight.launched.checked_sub(first) else {
            return Ok(()); // nothing was in flight
        };
        let launch = |sequence| flight.launches.iter().find(|l| l.sequence == sequence);
        let (at_work, last) = (launch(first), launch(flight.launched));
        match (flight.started, at_work, last) {
            (Some(_), Some(Launch { text, .. }), _) => {
                write!(f, "\n  at work: launch {first}, {text}")?;
                match behind {
                    0 => Ok(()),
                    _ => write!(f, "\n  queued behind it: {behind} more"),
                }
            }
            (_, _, Some(Launch { sequence, text })) => {
                if behind > 0 {
                    write!(
                        f,
                        "\n  in flight: launches {first} to {sequence}; device.sync=true tells which"
                    )?;
                }
                write!(f, "\n  launched last: launch {sequence}, {text}")
            }
            _ => Ok(()),
        }
    }
}

/// The rank to be told of. The launcher of several does not say whose end was the first; `None`: neither does anything else.
fn rank_at_fault(end: &WorkerEnd, tails: &[String]) -> Option<usize> {
    if let WorkerEnd::Hang { rank, .. } = end {
        return Some(*rank);
    }
    let has_failed = |text: &String| excerpt(text).iter().any(|line| is_failed_check(line));
    match tails {
        [_one] => Some(0),
        several => several.iter().position(has_failed),
    }
}

fn of_several(headline: String, rank: Option<usize>) -> String {
    match rank {
        Some(rank) => format!("rank {rank}: {headline}"),
        None => format!("a rank has ended, and all with it: {headline}"),
    }
}

fn headline(end: &WorkerEnd, flight: &Flight, log_excerpt: &[String]) -> String {
    let status = match end {
        WorkerEnd::Hang { waited, .. } => {
            let what = flight.waiting_for.map(|what| format!(" for {what}"));
            return format!(
                "the device hangs: the process waited {} s{} (device.timeout_seconds) and was ended",
                waited.as_secs(),
                what.unwrap_or_default()
            );
        }
        WorkerEnd::Exit(status) => status,
    };
    match (status.code(), status.signal()) {
        // Its threads go on while it exits, and may crash before it is through.
        _ if status.code() == Some(EXIT_ASSERT)
            || log_excerpt.iter().any(|line| is_failed_check(line)) =>
        {
            "a check in a kernel failed, which ends the process".to_owned()
        }
        (Some(101), _) => "the process panicked: see above".to_owned(),
        (Some(137), _) => KILLED.to_owned(), // what a launcher makes of it
        (Some(code), _) => format!("the device's runtime ended the process with exit code {code}"),
        (None, Some(9)) => KILLED.to_owned(),
        (None, signal) => format!("the process crashed with signal {}", signal.unwrap_or(0)),
    }
}

/// The log in the run folder, where the first rank has it; or a copy there, or beside the session if there is no run folder
/// yet. The session is about to be removed.
fn log_to_keep(session: &Session, rank: usize) -> Option<PathBuf> {
    let files = session.files().of_rank(rank);
    let (log, _) = files.log_now();
    if files.run().is_some() {
        return Some(log);
    }
    let kept = match session.files().run() {
        Some(run) => run.join(format!("device-rank{rank}.log")),
        None => session.files().0.with_extension("log"),
    };
    fs::copy(log, &kept).ok().map(|_| kept)
}

/// The end of what this session has in the log.
fn tail(files: &Files) -> String {
    let (path, start) = files.log_now();
    let read = || -> std::io::Result<Vec<u8>> {
        let mut log = File::open(&path)?;
        let len = log.metadata()?.len();
        log.seek(SeekFrom::Start(start.max(len.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The first lines about a failed check, or else the last lines; without what the runtime always says, and what several
/// cores say once.
fn excerpt(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text
        .lines()
        .map(without_core)
        .filter(|line| !is_noise(line))
    {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.iter().position(|line| is_failed_check(line)) {
        Some(first) => lines.drain(..first),
        None => lines.drain(..lines.len().saturating_sub(SHOWN)),
    };
    lines.truncate(SHOWN);
    lines
}

fn is_failed_check(line: &str) -> bool {
    line.contains("Assert") || line.contains("[ERR]")
}

fn is_noise(line: &str) -> bool {
    const NOISE: &[&str] = &["[ap] ", "[cdm host", "device id:", "Obtained "];
    let is_frame = line.contains(".so") && line.ends_with(']') && line.contains(" [0x");
    line.is_empty() || is_frame || NOISE.iter().any(|noise| line.starts_with(noise))
}

/// The line without the number of the core that said it, `[3]`, wherever it stands.
fn without_core(line: &str) -> String {
    let mut text = line.to_owned();
    for core in 0..8 {
        text = text.replace(&format!("[{core}]"), " ");
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use tt_tpu::flight::Wait;

    use super::*;

    /// As the emulator prints it, shortened.
    const ASSERT: &str = "\
[cdm host-7751]: tpuRtInit: 85: debug_enable not found use default
[ap] entry port:10001, base port:10001
device id:0 / 1
[ap] memory init ok
[7][ERR] not supported dtype=99[7]/src/tpu_kernel_common.c:77: tpu_data_type_size: Assertion \"0\" failed.
[6][ERR] not supported dtype=99[6]/src/tpu_kernel_common.c:77: tpu_data_type_size: Assertion \"0\" failed.
Obtained 10 stack frames.
libtpuv7_emulator.so(tpu_data_type_size+0xee) [0x7fa9cb9c815e]
";

    #[test]
    fn what_the_device_says_is_told_once_and_without_noise() {
        let excerpt = excerpt(ASSERT);
        assert_eq!(
            excerpt[0],
            "[ERR] not supported dtype=99 /src/tpu_kernel_common.c:77: tpu_data_type_size: Assertion \"0\" failed."
        );
        assert_eq!(excerpt.len(), 1);
    }

    #[test]
    fn a_crash_after_a_failed_check_is_a_failed_check() {
        let crashed = WorkerEnd::Exit(ExitStatus::from_raw(11));
        let headline = |log: &[String]| headline(&crashed, &Flight::default(), log);
        assert!(headline(&excerpt(ASSERT)).contains("a check in a kernel failed"));
        assert!(headline(&[]).contains("signal 11"));
    }

    #[test]
    fn noise_alone_says_nothing() {
        assert_eq!(excerpt("[ap] memory init ok\ndevice id:0 / 1\n\n"), [""; 0]);
    }

    fn report(flight: Flight) -> CrashReport {
        CrashReport {
            headline: headline(
                &WorkerEnd::Exit(ExitStatus::from_raw(233 << 8)),
                &flight,
                &[],
            ),
            log_excerpt: vec!["Assertion failed.".into(), "a frame".into()],
            flight,
            log: Some("run/device.log".into()),
            run: Some("run".into()),
            checkpoint: Some((4, "run/checkpoints/step-00000004".into())),
            command: Some("tpu-train x=1".into()),
        }
    }

    #[test]
    fn a_report_says_what_where_and_how_to_go_on() {
        let launches = (39..=40).map(|sequence| Launch {
            sequence,
            text: format!("op [{sequence}]"),
        });
        let flight = Flight {
            launched: 40,
            done: 38,
            launches: launches.collect(),
            waits: 1,
            waiting_for: Some(Wait::Launches),
            started: Some(39),
        };
        assert_eq!(
            report(flight.clone()).to_string(),
            "\
a check in a kernel failed, which ends the process
  it says: Assertion failed.
           a frame
  at work: launch 39, op [39]
  queued behind it: 1 more
  all it says is in run/device.log
  the state before is in run/checkpoints/step-00000004; this goes on from it:
  tpu-train x=1"
        );
        let unknown = Flight {
            started: None,
            ..flight
        };
        let text = report(unknown).to_string();
        assert!(text.contains("in flight: launches 39 to 40;"), "{text}");
    }
}
