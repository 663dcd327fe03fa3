//! The device, opened and tried in a process of its own: this program again, as `doctor probe FILE`.
//!
//! The vendor's libraries print on both outputs, so results go to a file, one line of JSON each as they come: what was begun last is
//! what crashed or hung.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tt_tensor::{Device, TpuDevice, TpuOptions};
use tt_tpu::chip;
use tt_tpu::sdk::{Sdk, SdkKind};

use super::kernels::{GROUPS, Group};
use crate::failure::Failure;

/// What asks for it: `doctor probe FILE`.
pub(super) const OPERAND: &str = "probe";
/// The group of opening the device.
const DEVICE: &str = "device";

/// Names a number of seconds for the whole probe; for tests and for slow machines.
const TIMEOUT: &str = "TPU_TRAIN_DOCTOR_TIMEOUT";
const TIMEOUT_SECONDS: u64 = 60;
/// Largest error of a result, relative to the largest magnitude. Products of f32 are good to a few roundings; exp to 3e-6.
const TOLERANCE: f32 = 2e-5;

/// What came of a group of kernels.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Outcome {
    pub(super) group: String,
    pub(super) text: String,
    pub(super) error: Option<String>,
    /// It was asked for, and nobody knows.
    pub(super) is_unknown: bool,
}

impl Outcome {
    fn failed(group: impl Into<String>, error: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            text: String::new(),
            error: Some(error.into()),
            is_unknown: false,
        }
    }
}

/// A line of the file.
#[derive(Deserialize, Serialize)]
enum Line {
    Begun(String),
    Ended(Outcome),
}

/// Tries the device in a child.
pub(super) fn run() -> Vec<Outcome> {
    match try_run() {
        Ok(outcomes) => outcomes,
        Err(error) => {
            let why = format!("the probe did not start: {error}");
            vec![Outcome::failed(DEVICE, why)]
        }
    }
}

fn try_run() -> std::io::Result<Vec<Outcome>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("probe.jsonl");
    File::create(&file)?;
    let log = folder.path().join("device.log");
    let noise = File::create(&log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", OPERAND]).arg(&file);
    command.env(tt_tpu::EMULATOR_FOLDER, folder.path());
    command
        .stdin(Stdio::null())
        .stdout(noise.try_clone()?)
        .stderr(noise);
    let mut child = command.spawn()?;
    let seconds = std::env::var(TIMEOUT)
        .ok()
        .and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(TIMEOUT_SECONDS));
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (mut outcomes, unfinished) = read(&fs::read_to_string(&file)?);
    let how = match ended {
        Some(status) if status.success() && unfinished.is_none() => return Ok(outcomes),
        Some(status) => format!("the process ended with {status}"),
        None => format!("it did not end within {} s", limit.as_secs()),
    };
    let log = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let last = log.lines().rfind(|line| !line.trim().is_empty());
    let said = last.map_or(String::new(), |line| format!("; it last said: {line}"));
    let group = unfinished.as_deref().unwrap_or(DEVICE);
    outcomes.push(Outcome::failed(group, format!("{how}{said}")));
    Ok(outcomes)
}

/// What has ended, and what was begun and has not.
fn read(text: &str) -> (Vec<Outcome>, Option<String>) {
    let (mut outcomes, mut unfinished) = (Vec::new(), None);
    for line in text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
    {
        match line {
            Line::Begun(group) => unfinished = Some(group),
            Line::Ended(outcome) => {
                outcomes.push(outcome);
                unfinished = None;
            }
        }
    }
    (outcomes, unfinished)
}

/// What the child does.
pub(super) fn work(file: &Path) -> Result<ExitCode, Failure> {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(file)
        .map_err(Failure::run)?;
    let mut write = |line: &Line| {
        let text = serde_json::to_string(line).map_err(Failure::run)?;
        writeln!(file, "{text}").map_err(Failure::run)
    };
    write(&Line::Begun(DEVICE.to_owned()))?;
    let begun = Instant::now();
    let opened = TpuDevice::open(&TpuOptions {
        cores: Some(2),
        forbid_fallback: true,
        ..TpuOptions::default()
    });
    write(&Line::Ended(Outcome {
        group: DEVICE.to_owned(),
        text: format!("opened in {} ms", begun.elapsed().as_millis()),
        error: opened.as_ref().err().map(ToString::to_string),
        is_unknown: false,
    }))?;
    let Ok(tpu) = opened else {
        return Ok(ExitCode::SUCCESS); // it is told
    };
    for group in GROUPS {
        write(&Line::Begun(group.name.to_owned()))?;
        write(&Line::Ended(try_group(group, tpu)))?;
    }
    // Last, as it may hang, and all that matters has been told.
    let sdk = Sdk::find(None).map_err(Failure::run)?;
    if sdk.kind == SdkKind::Driver {
        write(&Line::Begun("chip".to_owned()))?;
        for fact in chip::of_runtime(&sdk, 0) {
            let unknown = |looked_in| format!("unknown: not told by {looked_in}");
            write(&Line::Ended(Outcome {
                group: fact.name.to_owned(),
                is_unknown: fact.told.is_err(),
                text: fact.told.unwrap_or_else(unknown),
                error: None,
            }))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn try_group(group: &Group, tpu: TpuDevice) -> Outcome {
    let launched = || tpu.stats().num_launches();
    let (begun, before) = (Instant::now(), launched());
    let error = match group.relative_error(Device::Tpu(tpu)) {
        Ok(error) => error,
        Err(error) => return Outcome::failed(group.name, error.to_string()),
    };
    let (ms, launches) = (begun.elapsed().as_millis(), launched() - before);
    if error.is_nan() || error > TOLERANCE {
        let why = format!("wrong by {error:.1e} of the CPU's result");
        return Outcome::failed(group.name, why);
    }
    if launches == 0 {
        return Outcome::failed(group.name, "it launched nothing on the device");
    }
    Outcome {
        group: group.name.to_owned(),
        text: format!("error {error:.1e} against the CPU, {launches} launches, {ms} ms"),
        error: None,
        is_unknown: false,
    }
}
