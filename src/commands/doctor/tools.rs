//! Programs that are of use beside this one, none of them needed.

use std::process::{Command, Stdio};

use super::findings::{Findings, State};

const TOOLS: &str = "tools";

pub(super) fn rows(findings: &mut Findings) {
    for (name, program, args) in [
        ("MPI", "mpirun", ["--version"].as_slice()),
        ("Slurm", "srun", &["--version"]),
        ("Python", "python3", &["--version"]),
    ] {
        let (state, text) = match first_line(program, args) {
            Some(line) => (State::Ok, line),
            None => (State::Missing, format!("{program} not found")),
        };
        findings.row(TOOLS, name, state, text);
    }
    for package in ["torch", "transformers"] {
        // From the packages' records: importing torch takes seconds.
        let code = format!("import importlib.metadata as m; print(m.version('{package}'))");
        let (state, text) = match first_line("python3", &["-c", &code]) {
            Some(line) => (State::Ok, line),
            None => (State::Missing, "not installed for python3".to_owned()),
        };
        findings.row(TOOLS, package, state, text);
    }
}

/// What a program prints first, if it is there and content.
fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}
