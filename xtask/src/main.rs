//! Project chores. `cargo xtask check` is what a change must pass; CI runs nothing else.

mod sdk;

use std::process::{Command, ExitCode};
use std::time::Instant;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  check           formatting, lints, tests (also of generated docs) and documentation links;
                  stops at the first that fails
  sdk             install the vendor's emulator of Sophgo TPUs, for tests and device=tpu
  sdk --wheel F   the same from a package that is here already
  docs            write what is generated: docs/configuration.md, docs/config.schema.json
  docs --check    fail if they are not what would be written";

/// What `check` runs, in order: quickest verdict first.
const CHECKS: &[Check] = &[
    Check {
        name: "formatting",
        cargo: "fmt --all --check",
        env: None,
    },
    Check {
        name: "lints",
        cargo: "clippy --workspace --all-targets -- -D warnings",
        env: None,
    },
    Check {
        name: "tests",
        cargo: "test --workspace",
        env: None,
    },
    // The operations once more with all cores of the TPU: results must be the same for any number.
    Check {
        name: "operations on eight cores",
        cargo: "test --workspace --test ops --test fused --test precision tpu",
        env: Some(("TT_TPU_CORES", "8")),
    },
    Check {
        name: "documentation links",
        cargo: "doc --workspace --no-deps --document-private-items",
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
];

struct Check {
    name: &'static str,
    /// The command line after `cargo`, split at spaces.
    cargo: &'static str,
    /// A variable to set.
    env: Option<(&'static str, &'static str)>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => {
            // Without it the TPU's tests say that they were skipped; with CI set they fail.
            if let Err(problem) = sdk::install(None) {
                eprintln!("== no emulator of the TPU: {problem:#}");
            }
            run(CHECKS)
        }
        ["sdk"] => installed(sdk::install(None)),
        ["sdk", "--wheel", wheel] => installed(sdk::install(Some(wheel.as_ref()))),
        ["docs"] => run(&[docs(Some(("TT_WRITE_DOCS", "1")))]),
        ["docs", "--check"] => run(&[docs(None)]),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn installed(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

/// The generated docs are compared, or written, by a test of the library: it has all the types they come from, and
/// `check` runs it among the other tests without another build.
const fn docs(env: Option<(&'static str, &'static str)>) -> Check {
    Check {
        name: "generated docs",
        cargo: "test --package tpu-train --lib --quiet -- reference::docs_are_current --exact",
        env,
    }
}

fn run(checks: &[Check]) -> ExitCode {
    for check in checks {
        println!("== {}: cargo {}", check.name, check.cargo);
        let started = Instant::now();
        if let Err(problem) = check.run() {
            eprintln!("== {} failed: {problem}", check.name);
            return ExitCode::FAILURE;
        }
        println!(
            "== {} passed in {:.0} s",
            check.name,
            started.elapsed().as_secs_f64()
        );
    }
    ExitCode::SUCCESS
}

impl Check {
    fn run(&self) -> Result<(), String> {
        // The cargo that runs us, not whichever comes first in PATH.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(self.cargo.split_whitespace());
        if let Some((name, value)) = self.env {
            command.env(name, value);
        }
        let status = command
            .status()
            .map_err(|e| format!("cargo did not start: {e}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("cargo ended with {status}"))
        }
    }
}
