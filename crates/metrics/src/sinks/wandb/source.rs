//! What a run is made from: program, machine and commit.

use std::process::Command;

use serde_json::{Value, json};

use super::record::Run;

/// What the site shows of machine and program: the file `wandb-metadata.json`.
pub(super) fn metadata(environment: &Value, run: &Run) -> Value {
    let cpu = &environment["cpu"];
    let args = environment["args"].as_array().cloned().unwrap_or_default();
    let started = jiff::Timestamp::from_microsecond((run.start_time * 1e6) as i64);
    json!({
        "os": std::env::consts::OS,
        "startedAt": started.unwrap_or_default().to_string(),
        "program": "tpu-train",
        "args": args.get(1..).unwrap_or_default(),
        "root": environment["working_dir"],
        "host": run.host,
        "executable": args.first(),
        "cpu_count_logical": cpu["num_cores"],
        "cpu": {"model": cpu["model"]},
        "memory": {"total": environment["memory_bytes"].as_u64().map(|bytes| bytes.to_string())},
        "git": {"remote": run.git_remote, "commit": run.git_commit},
        "version": environment["version"],
        "rustc": environment["rustc"],
    })
}

/// What git says of the working directory.
pub(super) fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .env("GIT_OPTIONAL_LOCKS", "0") // only looking
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    output.status.success().then_some(text)
}

/// `https://user:password@host/...` as it may be shown.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}/{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_left_out() {
        for (url, shown) in [
            ("https://u:p@host/a.git", "https://host/a.git"),
            ("https://host/a@b.git", "https://host/a@b.git"),
            ("git@host:a.git", "git@host:a.git"),
            ("ssh://git@host/a.git", "ssh://host/a.git"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
