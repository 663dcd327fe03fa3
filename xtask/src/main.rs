//! Project chores. `cargo xtask check` is what a change must pass; CI runs nothing else.

use std::process::{Command, ExitCode};
use std::time::Instant;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  check    formatting, lints, tests and documentation links; stops at the first that fails";

/// What `check` runs, in order: quickest verdict first.
const CHECKS: &[Check] = &[
    Check {
        name: "formatting",
        cargo: "fmt --all --check",
        rustdocflags: None,
    },
    Check {
        name: "lints",
        cargo: "clippy --workspace --all-targets -- -D warnings",
        rustdocflags: None,
    },
    Check {
        name: "tests",
        cargo: "test --workspace",
        rustdocflags: None,
    },
    Check {
        name: "documentation links",
        cargo: "doc --workspace --no-deps --document-private-items",
        rustdocflags: Some("-D warnings"),
    },
];

struct Check {
    name: &'static str,
    /// The command line after `cargo`, split at spaces.
    cargo: &'static str,
    rustdocflags: Option<&'static str>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn check() -> ExitCode {
    for check in CHECKS {
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
        if let Some(flags) = self.rustdocflags {
            command.env("RUSTDOCFLAGS", flags);
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
