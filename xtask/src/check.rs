//! What a change must pass: steps of cargo, and the test binaries one after the other, with a table of what each took.
//!
//! The first step that fails ends the check, except that all test binaries are run before they are judged: a table of
//! what is red is worth more than the first red test.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tt_report::Column;

use crate::{cargo_command, layers, root};

/// How much is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What every change must pass.
    Usual,
    /// Also the tests that are marked `#[ignore]`: slow, and rarely red.
    Full,
}

/// Runs everything. Error: what failed.
pub fn check(extent: Extent) -> Result<()> {
    let mut table = Table::default();
    let outcome = run_steps(extent, &mut table);
    print!("\n{}", table.text());
    println!("{}", table.totals.closing_line());
    outcome
}

/// In order, quickest verdict first.
fn run_steps(extent: Extent, table: &mut Table) -> Result<()> {
    table.step("formatting", || cargo("fmt --all --check"))?;
    table.step("layers", || layers::check(root()).map(drop))?;
    table.step("lints", || {
        run(with_features("clippy --workspace --all-targets").args(["--", "-D", "warnings"]))
    })?;
    let mut binaries = Vec::new();
    table.step("build of the tests", || {
        binaries = build_tests()?;
        Ok(())
    })?;
    let mut passes: Vec<Pass> = binaries.iter().map(|it| it.pass(extent)).collect();
    for isa in lower_isas() {
        passes.extend(binaries.iter().filter_map(|it| it.on_isa(isa, extent)));
    }
    passes.extend(
        binaries
            .iter()
            .filter_map(|it| it.of_the_other_chip(extent)),
    );
    if extent == Extent::Full {
        passes.extend(binaries.iter().flat_map(TestBinary::of_the_tpu_otherwise));
    }
    let mut red = Vec::new();
    for pass in &passes {
        if !table.tests(pass)? {
            red.push(pass.name.clone());
        }
    }
    ensure!(red.is_empty(), "tests failed: {}", red.join(", "));
    if extent == Extent::Full {
        // Features of their own: what depends on them is built once more, beside what is there.
        table.step("without MPI", || {
            cargo("test --workspace --test e2e --quiet -- without_mpi")
        })?;
        table.step("ranks that are processes, MPICH", || {
            // Not only the tests of MPI: those run an example, which is not built for one of them.
            let mut test =
                command("test --package tt-dist --features mpi --quiet --target-dir target/mpich");
            run(test
                .env("MPICC", "mpicc.mpich")
                .env("TT_MPIRUN", "mpirun.mpich"))
        })?;
        // In a folder of its own: everything above would be built again.
        table.step("tt-cpu with checked pointers and sums", || {
            cargo(
                "test --package tt-cpu --quiet --target-dir target/checked \
                 --config profile.dev.package.tt-cpu.debug-assertions=true \
                 --config profile.dev.package.tt-cpu.overflow-checks=true",
            )
        })?;
    }
    table.step("tests in documentation", || {
        run(&mut with_features("test --workspace --doc --quiet"))
    })?;
    table.step("documentation links", || {
        let mut doc = command("doc --workspace --no-deps --document-private-items");
        run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })
}

/// A command with the features that can be tested here: ranks that are processes need an MPI to be built with, which under
/// `CI` must be there.
fn with_features(arguments: &str) -> Command {
    let has_mpi = || {
        let wrapper = std::env::var_os("MPICC").unwrap_or_else(|| "mpicc".into());
        let asked = Command::new(wrapper)
            .arg("-show")
            .stdout(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    };
    if std::env::var_os("CI").is_some() || has_mpi() {
        command(&format!("{arguments} --features tpu-train/mpi"))
    } else {
        command(arguments)
    }
}

/// The cargo that runs us, not whichever comes first in PATH; `arguments` are split at spaces.
fn command(arguments: &str) -> Command {
    println!("== cargo {arguments}");
    let mut command = cargo_command();
    command.args(arguments.split_whitespace());
    command
}

fn cargo(arguments: &str) -> Result<()> {
    run(&mut command(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().context("cargo did not start")?;
    ensure!(status.success(), "cargo ended with {status}");
    Ok(())
}

/// The instruction sets that this processor has below its best.
fn lower_isas() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bf16") {
            return &["generic", "avx2", "avx512"];
        }
        if has!("avx512f") {
            return &["generic", "avx2"];
        }
        if has!("avx2") && has!("fma") {
            return &["generic"];
        }
    }
    &[]
}

/// A binary with tests, unit tests of a target or those of a file under `tests/`.
struct TestBinary {
    package: String,
    target: String,
    executable: PathBuf,
    /// Tests expect to be run in the folder of their package.
    folder: PathBuf,
}

/// Builds all of them. They are then run here and not by cargo, which does not say what each took.
fn build_tests() -> Result<Vec<TestBinary>> {
    /// A line of `--message-format=json`, as far as it is read.
    #[derive(Deserialize)]
    struct Message {
        manifest_path: Option<PathBuf>,
        target: Option<Target>,
        profile: Option<Profile>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }

    let mut build =
        with_features("test --workspace --no-run --message-format=json-render-diagnostics");
    let mut build = build.stdout(Stdio::piped()).spawn()?;
    let output = build.stdout.take().context("it is piped")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        let Ok(message) = serde_json::from_str::<Message>(&line?) else {
            continue;
        };
        let (Some(manifest), Some(target), Some(profile), Some(executable)) = (
            message.manifest_path,
            message.target,
            message.profile,
            message.executable,
        ) else {
            continue;
        };
        if !profile.test {
            continue;
        }
        let folder = manifest.parent().context("a manifest is in a folder")?;
        binaries.push(TestBinary {
            package: package_name(&manifest)?,
            target: match target.kind[0].as_str() {
                "test" => target.name,
                kind => kind.to_owned(),
            },
            executable,
            folder: folder.to_owned(),
        });
    }
    ensure!(build.wait()?.success(), "the tests do not build");
    // Libraries first: what they find is nearest to its cause.
    binaries.sort_by_key(|it| (it.target != "lib", it.package.clone(), it.target.clone()));
    Ok(binaries)
}

fn package_name(manifest: &std::path::Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest)?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = "));
    Ok(name
        .context("a package has a name")?
        .trim_matches('"')
        .to_owned())
}

/// One run of a test binary.
struct Pass {
    name: String,
    executable: PathBuf,
    folder: PathBuf,
    arguments: Vec<&'static str>,
    variable: Option<(&'static str, &'static str)>,
}

impl TestBinary {
    fn pass(&self, extent: Extent) -> Pass {
        Pass {
            name: format!("{} {}", self.package, self.target),
            executable: self.executable.clone(),
            folder: self.folder.clone(),
            arguments: match extent {
                Extent::Usual => vec![],
                Extent::Full => vec!["--include-ignored"],
            },
            variable: None,
        }
    }

    /// The goldens once more as a processor computes them that has nothing better than `isa`.
    fn on_isa(&self, isa: &'static str, extent: Extent) -> Option<Pass> {
        let pass = self.pass(extent);
        (self.package == "tt-trainers" && self.target == "golden").then(|| Pass {
            name: format!("{}, {isa}", pass.name),
            arguments: match extent {
                Extent::Usual => vec!["golden_qwen2_tied::cpu"],
                Extent::Full => vec!["golden_", "--skip", "tpu"],
            },
            variable: Some(("TT_ISA", isa)),
            ..pass
        })
    }

    /// Kernels of a BM1684X on its own emulator, which takes five times a BM1690's time: of products, of moves, and of products
    /// and rows together. And all kernels, operations and goldens, which take longer.
    fn of_the_other_chip(&self, extent: Extent) -> Option<Pass> {
        let pass = self.pass(extent);
        let arguments = match (self.package.as_str(), self.target.as_str(), extent) {
            ("tt-tpu", "kernels", Extent::Usual) => {
                vec!["matmul::", "copy::", "cross_entropy::", "traffic::"]
            }
            ("tt-tpu", "kernels" | "device", _) => pass.arguments,
            ("tt-tensor", "operations" | "fallback", Extent::Full) => {
                vec!["--include-ignored", "tpu"]
            }
            ("tt-trainers", "golden", Extent::Full) => {
                vec!["--include-ignored", "qwen2_tied::tpu", "lora_qwen2::tpu"]
            }
            ("tt-trainers", "training", Extent::Full) => vec!["tpu_support"],
            _ => return None,
        };
        Some(Pass {
            name: format!("{}, bm1684x", pass.name),
            arguments,
            variable: Some(("TT_TPU_CHIP", "bm1684x")),
            ..pass
        })
    }

    /// The operations once more with all cores of the TPU, and with many kernels a launch: results must be the same.
    fn of_the_tpu_otherwise(&self) -> Vec<Pass> {
        if self.package != "tt-tensor" || self.target == "lib" {
            return Vec::new();
        }
        let otherwise = |how: &str, variable| {
            let pass = self.pass(Extent::Full);
            Pass {
                name: format!("{}, {how}", pass.name),
                arguments: vec!["--include-ignored", "tpu"],
                variable: Some(variable),
                ..pass
            }
        };
        vec![
            otherwise("8 cores", ("TT_TPU_CORES", "8")),
            otherwise("batches", ("TT_TPU_MODE", "batch")),
        ]
    }
}

impl Pass {
    /// Runs it, showing all it prints. Gives what it counted, and whether it ended well.
    fn run(&self) -> Result<(Counts, bool)> {
        println!("== {}", self.name);
        let (output, ours) = io::pipe()?;
        let mut command = Command::new(&self.executable);
        command
            .args(&self.arguments)
            .envs(self.variable)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(ours.try_clone()?)
            .stderr(ours);
        let mut tests = command
            .spawn()
            .with_context(|| self.executable.display().to_string())?;
        drop(command); // and with it our end of the pipe
        let (mut counts, mut is_judged) = (Counts::default(), false);
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            let found = Counts::parse(&line);
            is_judged |= found.is_some();
            counts.add(found.unwrap_or_default());
        }
        let status = tests.wait()?;
        // The vendor's threads may crash a process that has used the emulator while it exits, rarely. All tests are judged
        // by then.
        if let (Some(signal), true) = (status.signal(), is_judged && counts.failed == 0) {
            println!("== signal {signal} after the last test of {}", self.name);
            return Ok((counts, true));
        }
        Ok((counts, status.success()))
    }
}

/// What the harness counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// From `test result: ok. 3 passed; 0 failed; 1 ignored; ..`.
    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix("test result: ")?;
        let count = |what: &str| {
            let before = line.split(what).next()?;
            before
                .rsplit([' ', '.'])
                .find(|word| !word.is_empty())?
                .parse()
                .ok()
        };
        Some(Self {
            passed: count(" passed")?,
            failed: count(" failed")?,
            ignored: count(" ignored")?,
        })
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    fn closing_line(self) -> String {
        let Self {
            passed,
            failed,
            ignored,
        } = self;
        format!("tests: {passed} passed, {failed} failed, {ignored} skipped")
    }
}

/// What has been run, what it counted and how long it took.
#[derive(Default)]
struct Table {
    rows: Vec<(String, Option<Counts>, Duration)>,
    totals: Counts,
}

impl Table {
    fn step(&mut self, name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        let outcome = run();
        self.rows.push((name.to_owned(), None, started.elapsed()));
        outcome.with_context(|| format!("{name} failed"))
    }

    fn tests(&mut self, pass: &Pass) -> Result<bool> {
        let started = Instant::now();
        let (counts, is_green) = pass.run()?;
        if counts == Counts::default() && is_green {
            return Ok(true); // a binary without tests is not worth a row
        }
        self.totals.add(counts);
        self.rows
            .push((pass.name.clone(), Some(counts), started.elapsed()));
        if !is_green && counts.failed == 0 {
            println!("{} ended early", pass.name);
        }
        Ok(is_green)
    }

    fn text(&self) -> String {
        let numbers = Column::right();
        let mut table = tt_report::Table::new([Column::left(), numbers, numbers, numbers]);
        table.row(["step", "tests", "ignored", "seconds"]);
        let mut row = |name: &str, counts: Option<Counts>, took: Duration| {
            let [tests, ignored] = match counts {
                Some(it) => [it.passed + it.failed, it.ignored].map(|count| count.to_string()),
                None => [String::new(), String::new()],
            };
            let seconds = format!("{:.1}", took.as_secs_f64());
            table.row([name.to_owned(), tests, ignored, seconds]);
        };
        for (name, counts, took) in &self.rows {
            row(name, *counts, *took);
        }
        let total = self.rows.iter().map(|(.., took)| *took).sum();
        row("total", Some(self.totals), total);
        table.to_string()
    }
}

/// Compares the generated docs with what would be written, or writes them: by a test, built with the others, for any other
/// program would be built with other features of what it depends on, and that anew.
pub fn docs(write: bool) -> Result<()> {
    let mut command = command("test --workspace --quiet --test reference");
    if write {
        command.env("TT_UPDATE_DOCS", "1");
    }
    run(&mut command)
}

/// What must not be wrong unseen. Not in `.cargo/mutants.toml`, whose files cargo-mutants adds to those of its arguments.
const MUTATED: [&str; 16] = [
    "collators/loader.rs",
    "crates/checkpoint/src/manifest.rs",
    "crates/checkpoint/src/reader.rs",
    "crates/checkpoint/src/retention.rs",
    "crates/checkpoint/src/writer.rs",
    "crates/data/src/order.rs",
    "crates/engine/src/sampler.rs",
    "crates/run/src/decide.rs",
    "crates/run/src/same_run.rs",
    "crates/run/src/segments.rs",
    "crates/tensor/src/tape.rs",
    "crates/train/src/guard.rs",
    "crates/train/src/loss_scale.rs",
    "crates/train/src/state.rs",
    "crates/train/src/step.rs",
    "optimizers/*.rs",
];

/// Plants faults, one at a time, and runs the tests that should find them: those of the crate that it is in, which find
/// nearly all in seconds each; for what these leave, those of crates above which exist to test it.
pub fn mutants(arguments: &[&str]) -> Result<()> {
    const ABOVE: &str = "--iterate --test-package \
        tt-collators,tt-engine,tt-optimizers,tt-run,tt-tensor,tt-train,tt-trainers";
    /// What cargo-mutants ends with if it has found none, some that no test finds, and some that ran out of time.
    const WAS_RUN: [Option<i32>; 3] = [Some(0), Some(2), Some(3)];
    let mutants = |tests: &str| {
        let mut command = command(&format!("mutants --workspace --in-place {tests}"));
        if !arguments.contains(&"-f") {
            command.args(MUTATED.map(|file| ["-f", file]).as_flattened());
        }
        command.args(arguments);
        command
    };
    let own = mutants("").status().context("cargo did not start")?;
    ensure!(WAS_RUN.contains(&own.code()), "cargo ended with {own}");
    // Of faults that a crate finds by itself nothing is left to do.
    if own.success() {
        return Ok(());
    }
    run(&mut mutants(ABOVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_is_read_as_it_counts() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.05s";
        let counts = Counts {
            passed: 12,
            failed: 3,
            ignored: 1,
        };
        assert_eq!(Counts::parse(line), Some(counts));
        assert_eq!(Counts::parse("test a::b ... ok"), None);
        assert_eq!(
            counts.closing_line(),
            "tests: 12 passed, 3 failed, 1 skipped"
        );
    }

    #[test]
    fn the_table_adds_up() {
        let mut table = Table::default();
        table
            .rows
            .push(("lints".into(), None, Duration::from_millis(1500)));
        let counts = Counts {
            passed: 7,
            failed: 0,
            ignored: 2,
        };
        table
            .rows
            .push(("tt-cpu lib".into(), Some(counts), Duration::from_secs(3)));
        table.totals = counts;
        assert_eq!(
            table.text(),
            "step        tests  ignored  seconds\n\
             lints                           1.5\n\
             tt-cpu lib      7        2      3.0\n\
             total           7        2      4.5\n"
        );
    }
}
