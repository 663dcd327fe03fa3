//! The command line, defined once: `tpu-train [COMMAND] [FLAG | OVERRIDE]...`.
//!
//! Flags keep the names and meaning they have in Hydra, which reads them as Python's argparse does: a value follows as
//! the next argument or after `=`, flags and overrides may be mixed, `--` ends the flags. What is neither a flag nor a
//! command is an override, and composition reads it.

mod flags;
mod help;
mod usage;

use std::ffi::OsString;

use tt_config::nearest;
use tt_run::ending::RERUN_FLAG;

use crate::args::{Args, BatchOptions, BenchKind, RunsOrder, Show};
use crate::commands::{self, Command};
use crate::shell::Completion;
use flags::{
    A, B, COUNT, HTML, JSON, LOG_X, MARKDOWN, MEMORY, MULTIRUN, PROMPT, PROMPT_FILE, PRUNE, QUIET,
    SORT, TEMPERATURE, TEXT, TOLERANCE, flag_named, owners,
};

pub(crate) use flags::{flags, hydra_flags, takes_override, values_after};
pub(crate) use help::help;
pub(crate) use usage::UsageError;

/// What a command line asks for.
pub(crate) enum Request {
    /// Of a command, if one is named.
    Help(Option<&'static Command>, Args),
    Version,
    HydraHelp(Args),
    Complete(Completion),
    /// Run a command, or with [`Args::show`] print the config it would run with.
    Run(&'static Command, Args),
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request, UsageError> {
    let args = args.into_iter().map(OsString::into_string);
    let raw: Vec<_> = args
        .collect::<Result<_, _>>()
        .map_err(UsageError::NotUtf8)?;
    let mut args = raw.clone().into_iter();
    let mut parsed = Args {
        raw,
        ..Args::default()
    };
    let mut command = None;
    let mut flags_ended = false;
    while let Some(arg) = args.next() {
        let is_plain = command.is_some_and(|command: &Command| command.is_plain());
        if flags_ended || !is_flag(&arg) {
            if is_plain {
                parsed.overrides.push(arg); // a path, and it may look like a command
                continue;
            }
            let is_bench = command.is_some_and(|command| command.name == commands::BENCH.name);
            if is_bench && is_word(&arg) {
                let kind = bench_kind(&arg)?;
                if parsed.options.bench.replace(kind).is_some() {
                    return Err(UsageError::SeveralBenches);
                }
                continue;
            }
            match command_named(&arg)? {
                Some(found) if command.is_none() => command = Some(found),
                _ => parsed.overrides.push(arg),
            }
        } else if arg == "--" {
            flags_ended = true;
        } else {
            let (name, mut value) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            let flag = flag_named(name)?;
            if flag.value.is_some() && value.is_none() {
                value = args.next();
            }
            flag.apply(&mut parsed, name, value)?;
        }
    }
    if parsed.help {
        return Ok(Request::Help(command, parsed));
    }
    request(parsed, command.unwrap_or(&commands::TRAIN))
}

/// `-` alone and negative numbers are not flags, but no override is either: composition will say so.
fn is_flag(arg: &str) -> bool {
    arg.strip_prefix('-')
        .and_then(|rest| rest.chars().next())
        .is_some_and(|c| c == '-' || c.is_ascii_alphabetic())
}

fn is_word(arg: &str) -> bool {
    !arg.is_empty() && arg.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// What `bench` is to measure.
fn bench_kind(arg: &str) -> Result<BenchKind, UsageError> {
    let names = BenchKind::ALL.iter().map(|kind| kind.name());
    BenchKind::named(arg).ok_or_else(|| UsageError::UnknownBench {
        kind: arg.to_owned(),
        nearest: nearest(arg, names).map(str::to_owned),
    })
}

/// A bare word is a command; anything with a sign of the override grammar in it is an override.
fn command_named(arg: &str) -> Result<Option<&'static Command>, UsageError> {
    if !is_word(arg) {
        return Ok(None);
    }
    match commands::TABLE.iter().find(|command| command.name == arg) {
        Some(command) => Ok(Some(command)),
        None => Err(UsageError::UnknownCommand {
            command: arg.to_owned(),
            nearest: nearest(arg, commands::TABLE.iter().map(|command| command.name))
                .map(str::to_owned),
        }),
    }
}

fn request(mut args: Args, command: &'static Command) -> Result<Request, UsageError> {
    if args.hydra_help {
        return Ok(Request::HydraHelp(args));
    }
    if args.version {
        return Ok(Request::Version);
    }
    if let Some(completion) = args.completion {
        return Ok(Request::Complete(completion));
    }
    let alone = |flag| UsageError::Alone {
        flag,
        needs: "--cfg",
    };
    if args.show.is_some() && command.is_plain() {
        return Err(UsageError::NoConfig(command.name));
    }
    if args.show.is_none() && args.resolve {
        return Err(alone("--resolve"));
    }
    if args.show.is_none() && args.package.is_some() {
        return Err(alone("--package"));
    }
    if args.multirun {
        let excluded = |flag| UsageError::Excluded("--multirun", flag);
        match args.show {
            _ if args.run => return Err(excluded("--run")),
            Some(Show::Config(_)) => return Err(excluded("--cfg")),
            Some(Show::Info(_)) => return Err(excluded("--info")),
            None => {}
        }
    }
    let prompt = &args.options.generate;
    if prompt.prompt.is_some() && prompt.prompt_file.is_some() {
        return Err(UsageError::Excluded(PROMPT, PROMPT_FILE));
    }
    if args.rerun.is_some() {
        // A recorded config is one config, and comes from nowhere else.
        for (flag, is_given) in [
            ("--multirun", args.multirun),
            ("--config-name", args.config_name.is_some()),
            ("--config-path", args.config_path.is_some()),
            ("--config-dir", args.config_dir.is_some()),
        ] {
            if is_given {
                return Err(UsageError::Excluded(RERUN_FLAG, flag));
            }
        }
    }
    let options = &args.options;
    for (flag, is_given) in [
        (MULTIRUN, args.multirun),
        (RERUN_FLAG, args.rerun.is_some()),
        (MEMORY, options.memory_bytes.is_some()),
        (JSON, options.json),
        (HTML, options.batch.html),
        (COUNT, options.batch.count != BatchOptions::default().count),
        (A, !options.diff.a.is_empty()),
        (B, options.diff.b.is_some()),
        (TOLERANCE, options.diff.tolerance.is_some()),
        (MARKDOWN, options.diff.markdown.is_some()),
        (PROMPT, options.generate.prompt.is_some()),
        (PROMPT_FILE, options.generate.prompt_file.is_some()),
        (TEMPERATURE, options.generate.numbers),
        (TEXT, !options.texts.is_empty()),
        (SORT, options.sort != RunsOrder::default()),
        (LOG_X, options.x_is_log),
        (PRUNE, options.prune_days.is_some()),
        (QUIET, options.quiet),
    ] {
        let (owners, command) = (owners(flag).unwrap_or_default(), command.name);
        if is_given && !owners.contains(&command) {
            return Err(UsageError::ForOther {
                flag,
                owners,
                command,
            });
        }
    }
    if command.name == commands::TRAIN.name {
        for (is_given, progress) in [(options.json, "json"), (options.quiet, "quiet")] {
            if is_given {
                args.overrides.push(format!("logging.progress={progress}"));
            }
        }
    }
    Ok(Request::Run(command, args))
}

#[cfg(test)]
mod tests;
