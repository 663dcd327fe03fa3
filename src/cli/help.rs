//! The help text.

use tt_report::{Column, Table};

use super::flags::{FLAGS, Flag, owners};
use crate::args::BenchKind;
use crate::commands::{self, Command, ROOT_CONFIG, Work};
use tt_run::program::TPU_TRAIN;

/// The help text of the program `name`, or of one of its commands; `groups` are the config groups with their options.
pub(crate) fn help(
    name: &str,
    command: Option<&Command>,
    groups: &[(String, Vec<String>)],
) -> String {
    let Some(command) = command else {
        return help_of_all(name, groups);
    };
    let mut table = Table::new([Column::left(), Column::left()]);
    let own = |flag: &&Flag| owners(flag.long).is_some_and(|owners| owners.contains(&command.name));
    if FLAGS.iter().any(|flag| own(&flag)) {
        table.line("\nits flags:");
        for flag in FLAGS.iter().filter(own) {
            table.row([format!("  {}", flag.usage()), without_owner(flag.about)]);
        }
    }
    table.line("\nflags:");
    for flag in FLAGS.iter().filter(|flag| owners(flag.long).is_none()) {
        if !command.is_plain() || FOR_PLAIN.contains(&flag.long) {
            table.row([format!("  {}", flag.usage()).as_str(), flag.about]);
        }
    }
    let usage = match command.work {
        Work::Plain(_) | Work::Recorded(_) => "[FLAG | OPERAND]...".to_owned(),
        Work::Composed { .. } if command.name == commands::BENCH.name => {
            let kinds = BenchKind::ALL.map(BenchKind::name);
            format!("[{}] [FLAG | OVERRIDE]...", kinds.join(" | "))
        }
        Work::Composed { .. } => "[FLAG | OVERRIDE]...".to_owned(),
    };
    let mut keys = String::new();
    if let Work::Composed { config_name, .. } = command.work {
        if config_name == ROOT_CONFIG || command.name == commands::BENCH.name {
            group_rows(&mut table, groups);
        }
        if config_name != ROOT_CONFIG {
            keys = format!(
                "\nits keys, to be set with key=value: {name} {} --cfg job\n",
                command.name
            );
        }
    }
    exit_code_rows(&mut table);
    let Command {
        name: of, about, ..
    } = command;
    format!("{about}\n\nusage: {name} {of} {usage}\n{keys}{table}")
}

/// Flags that commands without a config take.
const FOR_PLAIN: &[&str] = &["--version", "--help", "--hydra-help", "--shell-completion"];

/// "With plan: what there is" as the help of `plan` has it.
fn without_owner(about: &str) -> String {
    let rest = match about.split_once(": ") {
        Some((with, rest)) if with.starts_with("With ") => rest,
        _ => about,
    };
    let mut chars = rest.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

fn help_of_all(name: &str, groups: &[(String, Vec<String>)]) -> String {
    let mut table = Table::new([Column::left(), Column::left()]);
    table.line("\ncommands (COMMAND --help tells more of one):");
    for command in commands::TABLE {
        table.row([format!("  {}", command.name).as_str(), command.about]);
    }
    table.line("\nflags:");
    for flag in FLAGS {
        table.row([format!("  {}", flag.usage()).as_str(), flag.about]);
    }
    group_rows(&mut table, groups);
    exit_code_rows(&mut table);
    format!("{}{table}", HELP_HEAD.replace(TPU_TRAIN.name, name))
}

fn group_rows(table: &mut Table, groups: &[(String, Vec<String>)]) {
    table.line("\nconfig groups (choose with group=option):");
    for (group, options) in groups {
        table.row([format!("  {group}"), options.join(", ")]);
    }
}

fn exit_code_rows(table: &mut Table) {
    table.line("\nexit codes:");
    for (code, meaning) in EXIT_CODES {
        table.row([format!("  {code}").as_str(), meaning]);
    }
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
