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
use tt_tensor::{DType, Device, Tensor};

use super::PROBE;
use crate::failure::Failure;

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
}

/// A line of the file.
#[derive(Deserialize, Serialize)]
enum Line {
    Begun(String),
    Ended(Outcome),
}

/// Tries the device in a child.
pub(super) fn run() -> Vec<Outcome> {
    let failed = |error: String| Outcome {
        group: "device".to_owned(),
        text: String::new(),
        error: Some(error),
    };
    match try_run() {
        Ok(outcomes) => outcomes,
        Err(error) => vec![failed(format!("the probe did not start: {error}"))],
    }
}

fn try_run() -> std::io::Result<Vec<Outcome>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("probe.jsonl");
    File::create(&file)?;
    let log = folder.path().join("device.log");
    let noise = File::create(&log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", PROBE]).arg(&file);
    command.env("TPU_SCALAER_EMULATOR_WORKDIR", folder.path());
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
    outcomes.push(Outcome {
        group: unfinished.unwrap_or_else(|| "device".to_owned()),
        text: String::new(),
        error: Some(format!("{how}{said}")),
    });
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

type Check = fn(Device) -> tt_tensor::Result<Tensor>;

/// The groups of kernels, each computed on both devices.
const CHECKS: &[(&str, Check)] = &[
    ("copy", |device| input(device)?.t()?.contiguous()),
    ("element-wise", |device| {
        let x = input(device)?;
        x.mul(&x.sigmoid()?)?.add(&x)
    }),
    ("reduce", |device| input(device)?.sum(&[1])),
    ("softmax", |device| input(device)?.softmax(1)),
    ("index", |device| {
        let ids = Tensor::from_slice(&[5_u32, 0, 36, 5], 4, device)?;
        input(device)?.index_select(&ids, 0)
    }),
    ("matmul", |device| {
        let x = input(device)?;
        x.matmul(&x.t()?)
    }),
];

/// `[37, 65]`, f32: sizes that fill no lane evenly.
fn input(device: Device) -> tt_tensor::Result<Tensor> {
    let values: Vec<_> = (0..37 * 65).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::from_slice(&values, (37, 65), device)
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
    write(&Line::Begun("device".to_owned()))?;
    let begun = Instant::now();
    let opened = tt_tpu::open(&tt_tpu::Options {
        cores: Some(2),
        ..Default::default()
    });
    write(&Line::Ended(Outcome {
        group: "device".to_owned(),
        text: format!("opened in {} ms", begun.elapsed().as_millis()),
        error: opened.as_ref().err().map(ToString::to_string),
    }))?;
    let Ok(tpu) = opened else {
        return Ok(ExitCode::SUCCESS); // it is told
    };
    for (group, check) in CHECKS {
        write(&Line::Begun(group.to_string()))?;
        let begun = Instant::now();
        let error = relative_error(*check, Device::Tpu(tpu));
        let ms = begun.elapsed().as_millis();
        write(&Line::Ended(match error {
            Ok(error) => Outcome {
                group: group.to_string(),
                text: format!("error {error:.1e} against the CPU, {ms} ms"),
                error: (error.is_nan() || error > TOLERANCE)
                    .then(|| format!("wrong by {error:.1e} of the CPU's result")),
            },
            Err(error) => Outcome {
                group: group.to_string(),
                text: String::new(),
                error: Some(error.to_string()),
            },
        }))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn relative_error(check: Check, device: Device) -> tt_tensor::Result<f32> {
    let values = |device| check(device)?.to_dtype(DType::F32)?.to_vec::<f32>();
    let (want, have) = (values(Device::Cpu)?, values(device)?);
    let largest = want.iter().fold(0_f32, |max, x| max.max(x.abs()));
    let errors = want
        .iter()
        .zip(&have)
        .map(|(want, have)| (want - have).abs());
    // Not `f32::max`, which passes over NaN.
    let worst = errors.fold(0_f32, |max, x| if x <= max { max } else { x });
    Ok(worst / largest)
}
