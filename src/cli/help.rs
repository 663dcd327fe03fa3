//! The help text.

use super::flags::FLAGS;
use crate::commands;
use crate::program::TPU_TRAIN;

/// The help text of the program `name`; `groups` are the config groups with their options.
pub(crate) fn help(name: &str, groups: &[(String, Vec<String>)]) -> String {
    let mut rows = Vec::new();
    let section = |rows: &mut Vec<(String, String)>, title: &str| {
        rows.push((format!("\n{title}:"), String::new()));
    };
    section(&mut rows, "commands");
    for command in commands::TABLE {
        rows.push((format!("  {}", command.name), command.about.to_owned()));
    }
    section(&mut rows, "flags");
    for flag in FLAGS {
        rows.push((format!("  {}", flag.usage()), flag.about.to_owned()));
    }
    section(&mut rows, "config groups (choose with group=option)");
    for (group, options) in groups {
        rows.push((format!("  {group}"), options.join(", ")));
    }
    section(&mut rows, "exit codes");
    for (code, meaning) in EXIT_CODES {
        rows.push((format!("  {code}"), (*meaning).to_owned()));
    }

    // Titles have no second column, so they do not widen the first.
    let two_columns = rows.iter().filter(|(_, right)| !right.is_empty());
    let width = two_columns.map(|(left, _)| left.len()).max().unwrap_or(0);
    let mut text = HELP_HEAD.replace(TPU_TRAIN.name, name);
    for (left, right) in rows {
        text.push_str(format!("{left:width$}  {right}").trim_end());
        text.push('\n');
    }
    text
}

const HELP_HEAD: &str = "\
tpu-train: research-scale language model training, configured as in Hydra

usage: tpu-train [COMMAND] [FLAG | OVERRIDE]...

  tpu-train +model=qwen2 +trainer=lm lr=5e-5
  tpu-train +model=qwen2 model/size=nano +trainer=lm data=text data.path='corpus/*.txt'
";

const EXIT_CODES: &[(u8, &str)] = &[
    (0, "done"),
    (1, "the run failed, or the variants differ"),
    (2, "the request was wrong"),
    (75, "preempted; the same command continues"),
    (130, "interrupted; the same command continues"),
];
