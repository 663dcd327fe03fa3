//! The help text.

use tt_report::{Column, Table};

use super::flags::FLAGS;
use crate::commands;
use tt_run::program::TPU_TRAIN;

/// The help text of the program `name`; `groups` are the config groups with their options.
pub(crate) fn help(name: &str, groups: &[(String, Vec<String>)]) -> String {
    let mut table = Table::new([Column::left(), Column::left()]);
    table.line("\ncommands:");
    for command in commands::TABLE {
        table.row([format!("  {}", command.name).as_str(), command.about]);
    }
    table.line("\nflags:");
    for flag in FLAGS {
        table.row([format!("  {}", flag.usage()).as_str(), flag.about]);
    }
    table.line("\nconfig groups (choose with group=option):");
    for (group, options) in groups {
        table.row([format!("  {group}"), options.join(", ")]);
    }
    table.line("\nexit codes:");
    for (code, meaning) in EXIT_CODES {
        table.row([format!("  {code}").as_str(), meaning]);
    }
    format!("{}{table}", HELP_HEAD.replace(TPU_TRAIN.name, name))
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
