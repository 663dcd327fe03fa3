//! Training steps of ours beside PyTorch's and candle's: the same shapes, weights and batch, step by step in turn.
//!
//! Each side is a process that makes a step when it is told to (`benchmarks/src/main.rs`, `benchmarks/torch_side.py`), so
//! that its memory is its own; the others stand still meanwhile. Machines are noisy: what counts are the ratios of steps
//! of one round. All sides must agree on the first losses, or nothing is compared.

mod kind;
mod machine;
mod side;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tt_report::{Column, Table};

use crate::{cargo_command, root};
use kind::Kind;
use side::{Side, WARMUP};

/// What the Python sides need, of the versions that tests use.
const PACKAGES: [&str; 5] = ["torch", "transformers", "peft", "safetensors", "numpy"];

/// A pause between steps of two sides: worker threads of the one spin a little before they sleep.
const PAUSE: Duration = Duration::from_millis(20);

/// What is compared.
struct Request {
    shapes: Vec<String>,
    sides: Vec<&'static Kind>,
    steps: usize,
    isa: Option<String>,
    out: Option<PathBuf>,
}

impl Request {
    fn from_arguments(arguments: &[&str]) -> Result<Self> {
        let list = |text: &str| -> Vec<String> { text.split('/').map(str::to_owned).collect() };
        let mut request = Self {
            shapes: list("s/m/l"),
            sides: ["ours-f32", "torch-f32", "ours-bf16", "candle"]
                .into_iter()
                // Without the instructions PyTorch takes fifteen times as long in bf16 as in f32.
                .chain(machine::has_bf16().then_some("torch-bf16"))
                .map(kind::named)
                .collect::<Result<_>>()?,
            steps: 12,
            isa: None,
            out: None,
        };
        for pair in arguments.chunks(2) {
            let &[key, value] = pair else {
                bail!("`{}`: no value", pair[0]);
            };
            match key {
                "--shapes" => request.shapes = list(value),
                "--sides" => {
                    request.sides = value.split(',').map(kind::named).collect::<Result<_>>()?;
                }
                "--steps" => request.steps = value.parse().context("--steps")?,
                "--isa" => request.isa = Some(value.to_owned()),
                "--out" => request.out = Some(value.into()),
                _ => bail!("`{key}`: --shapes, --sides, --steps, --isa or --out"),
            }
        }
        ensure!(request.steps > 0, "--steps: at least 1");
        Ok(request)
    }
}

/// Measures, prints and writes the table.
pub fn compare(arguments: &[&str]) -> Result<()> {
    let request = Request::from_arguments(arguments)?;
    let ours = build()?;
    let python = if request.sides.iter().any(|side| side.torch.is_some()) {
        Some(python()?)
    } else {
        None
    };
    let mut text = heading(&request, python.as_deref())?;
    for shape in &request.shapes {
        let folder = tempfile::tempdir()?;
        let begun = Command::new(&ours)
            .args(["init", shape])
            .arg(folder.path())
            .status()?;
        ensure!(begun.success(), "tt-benchmarks init: {begun}");
        let mut sides = Vec::new();
        for kind in &request.sides {
            let mut command = match (kind.torch, &python) {
                (Some(arguments), Some(python)) => {
                    let mut command = Command::new(python);
                    command.arg(root().join("benchmarks/torch_side.py"));
                    command.arg(folder.path()).args(arguments);
                    command
                }
                _ => {
                    let mut command = Command::new(&ours);
                    command.args([kind.name, shape]).arg(folder.path());
                    command
                }
            };
            if kind.tuned {
                command.envs(kind::MALLOC);
            }
            if let Some(isa) = &request.isa {
                command.env("TT_ISA", isa);
            }
            sides.push(Side::start(kind, command).with_context(|| kind.name)?);
        }
        for step in 0..WARMUP + request.steps {
            for side in &mut sides {
                side.step().with_context(|| side.kind.name)?;
                thread::sleep(PAUSE);
            }
            eprintln!(
                "== {shape}: step {} of {}",
                step + 1,
                WARMUP + request.steps
            );
        }
        agree(&sides)?;
        let table = table(&sides, tokens(folder.path())?)?;
        println!("\n{shape}\n{table}");
        write!(text, "\n## Shape {shape}\n\n{}", table.markdown())?;
    }
    let path = match request.out {
        Some(path) => path,
        None => root().join(format!("benchmarks/peers-{}.md", machine::today()?)),
    };
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("written to {}", path.display());
    Ok(())
}

/// The sides in Rust, optimized.
fn build() -> Result<PathBuf> {
    let build = cargo_command()
        .args(["build", "--release", "--package", "tt-benchmarks"])
        .args([
            "--bin",
            "tt-benchmarks",
            "--message-format=json-render-diagnostics",
        ])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(build.status.success(), "cargo build: {}", build.status);
    /// A line of cargo's, as far as it is read.
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let lines = String::from_utf8(build.stdout)?;
    let mut built = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable);
    built.next().context("cargo built no program")
}

/// `TT_PYTHON`, else one in `target/` with what the sides need.
fn python() -> Result<PathBuf> {
    if let Some(python) = std::env::var_os("TT_PYTHON") {
        return Ok(python.into());
    }
    let folder = root().join("target/peers-python");
    let python = folder.join("bin/python");
    let complete = folder.join("complete");
    if !complete.exists() {
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&folder)
            .status()?;
        ensure!(made.success(), "python3 -m venv: {made}");
        let versions = fs::read_to_string(root().join("tests/python/requirements.txt"))?;
        let wanted = versions.lines().filter(|line| {
            line.split_once("==")
                .is_some_and(|(name, _)| PACKAGES.contains(&name))
        });
        let installed = Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(wanted)
            .status()?;
        ensure!(installed.success(), "pip install: {installed}");
        fs::write(complete, "")?;
    }
    Ok(python)
}

/// Fails if the first three losses differ by more than rounding explains; adapters are drawn by each side, so that theirs
/// need to agree before the first step only.
fn agree(sides: &[Side]) -> Result<()> {
    let Some(reference) = sides.iter().find(|side| !side.kind.is_bf16()) else {
        return Ok(());
    };
    for side in sides {
        let tolerance = if side.kind.is_bf16() { 1e-2 } else { 1e-4 };
        let count = if side.kind.draws_adapter() { 1 } else { 3 };
        for (ours, expected) in side.losses.iter().zip(&reference.losses).take(count) {
            ensure!(
                (ours - expected).abs() <= tolerance * expected.abs(),
                "{}: losses {:?}, but {}: {:?}",
                side.kind.name,
                &side.losses[..3],
                reference.kind.name,
                &reference.losses[..3]
            );
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A row for each side. Ratios are to PyTorch eager of the same precision, or peft, of steps of one round.
fn table(sides: &[Side], tokens: f64) -> Result<Table> {
    let mut columns = vec![Column::left()];
    columns.extend([Column::right(); 5]);
    let mut table = Table::new(columns);
    table.row([
        "side",
        "tokens/s",
        "step ms",
        "of torch",
        "peak RSS MB",
        "losses",
    ]);
    for side in sides {
        let peer = sides.iter().find(|other| other.kind.name == side.kind.peer);
        let ratio = peer.map_or(String::from("-"), |peer| {
            let ratios = peer.counted().iter().zip(side.counted());
            format!("{:.2}", median(ratios.map(|(peer, own)| peer / own)))
        });
        let seconds = median(side.counted().iter().copied());
        let losses: Vec<_> = side.losses[..3]
            .iter()
            .map(|loss| format!("{loss:.4}"))
            .collect();
        table.row([
            side.kind.name.to_owned(),
            format!("{:.0}", tokens / seconds),
            format!("{:.0}", seconds * 1e3),
            ratio,
            format!("{:.0}", side.peak_rss_bytes()? as f64 / 1e6),
            losses.join(" "),
        ]);
    }
    Ok(table)
}

/// Tokens of the batch in `folder`: 8 bytes each, after the header that says its own length.
fn tokens(folder: &Path) -> Result<f64> {
    let bytes = fs::read(folder.join("batch.safetensors"))?;
    let header = bytes.first_chunk::<8>().context("no header")?;
    let header = 8 + u64::from_le_bytes(*header) as usize;
    Ok(((bytes.len() - header) / 8) as f64)
}

/// What was measured, where.
fn heading(request: &Request, python: Option<&Path>) -> Result<String> {
    let versions = machine::versions(python)?;
    let isa = request.isa.as_deref().unwrap_or("the best there is");
    Ok(format!(
        "# Training steps, {date}\n\n\
         {name}, family {family}, model {model} ({flags}), {cores} cores; {versions}. Ours with TT_ISA: {isa}. Median of \
         {steps} steps after {WARMUP}, in turn; `of torch` is the median ratio to PyTorch eager in the same precision in the \
         same round. Written by `cargo xtask bench-peers`.\n",
        date = machine::today()?,
        name = machine::cpu_field("model name"),
        family = machine::cpu_field("cpu family"),
        model = machine::cpu_field("model"),
        flags = machine::cpu_flags().join(" "),
        cores = thread::available_parallelism()?,
        steps = request.steps,
    ))
}
