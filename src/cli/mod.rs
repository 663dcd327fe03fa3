//! The command line, defined once: `tpu-train [COMMAND] [FLAG | OVERRIDE]...`.
//!
//! Flags keep the names and meaning they have in Hydra, which reads them as Python's argparse does: a value follows as
//! the next argument or after `=`, flags and overrides may be mixed, `--` ends the flags. What is neither a flag nor a
//! command is an override, and composition reads it.

mod flags;
mod help;

use std::ffi::OsString;
use std::path::PathBuf;

use tt_run::ending::RERUN_FLAG;

pub(crate) use self::flags::{flags, hydra_flags, takes_override, values_after};
pub(crate) use self::help::help;

use self::flags::{A, B, JSON, MARKDOWN, MEMORY, TOLERANCE, flag_named};
use crate::commands::show::Show;
use crate::commands::{self, Command, Options};
use crate::completion::Completion;

/// What a command line asks for.
pub(crate) enum Request {
    Help(Args),
    Version,
    HydraHelp(Args),
    Complete(Completion),
    /// Run a command, or with [`Args::show`] print the config it would run with.
    Run(&'static Command, Args),
}

/// The arguments that shape composition, the same for every command.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) show: Option<Show>,
    pub(crate) package: Option<String>,
    pub(crate) resolve: bool,
    pub(crate) config_name: Option<String>,
    pub(crate) config_path: Option<PathBuf>,
    pub(crate) config_dir: Option<PathBuf>,
    /// Overrides, or for a [`commands::Work::Plain`] command its operands.
    pub(crate) overrides: Vec<String>,
    run: bool,
    multirun: bool,
    /// All arguments, as given.
    pub(crate) raw: Vec<String>,
    /// The run folder whose config is used instead of one composed.
    pub(crate) rerun: Option<PathBuf>,
    pub(crate) options: Options,
    completion: Option<Completion>,
    help: bool,
    hydra_help: bool,
    version: bool,
}

/// A command line that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("unknown flag `{flag}`{}", hint(.nearest))]
    UnknownFlag {
        flag: String,
        nearest: Option<String>,
    },
    #[error("unknown command `{command}`{}; an override has the form key=value", hint(.nearest))]
    UnknownCommand {
        command: String,
        nearest: Option<String>,
    },
    #[error("flag `{flag}` needs a value: {value}")]
    MissingValue { flag: String, value: &'static str },
    #[error("flag `{flag}` takes no value")]
    UnexpectedValue { flag: String },
    #[error("`{value}` is not a value of `{flag}`: {expected}")]
    BadValue {
        flag: String,
        value: String,
        expected: &'static str,
    },
    #[error("flag `{flag}` does nothing without `{needs}`")]
    Alone {
        flag: &'static str,
        needs: &'static str,
    },
    #[error("flags `{0}` and `{1}` exclude each other")]
    Excluded(&'static str, &'static str),
    #[error("`{flag}` is for {}, not for `{command}`", names(.owners))]
    ForOther {
        flag: &'static str,
        owners: &'static [&'static str],
        command: &'static str,
    },
    #[error("`{0}` composes no config: it takes neither --cfg nor --info")]
    NoConfig(&'static str),
    #[error("argument is not UTF-8: {0:?}")]
    NotUtf8(OsString),
}

fn names(owners: &[&str]) -> String {
    let names: Vec<_> = owners.iter().map(|name| format!("`{name}`")).collect();
    names.join(" and ")
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    }
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
    parsed.into_request(command.unwrap_or(&commands::TRAIN))
}

/// `-` alone and negative numbers are not flags, but no override is either: composition will say so.
fn is_flag(arg: &str) -> bool {
    arg.strip_prefix('-')
        .and_then(|rest| rest.chars().next())
        .is_some_and(|c| c == '-' || c.is_ascii_alphabetic())
}

/// A bare word is a command; anything with a sign of the override grammar in it is an override.
fn command_named(arg: &str) -> Result<Option<&'static Command>, UsageError> {
    if arg.is_empty() || !arg.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Ok(None);
    }
    match commands::TABLE.iter().find(|command| command.name == arg) {
        Some(command) => Ok(Some(command)),
        None => Err(UsageError::UnknownCommand {
            command: arg.to_owned(),
            nearest: nearest(arg, commands::TABLE.iter().map(|command| command.name)),
        }),
    }
}

/// The known word that `word` is most likely a slip of.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len())
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

impl Args {
    fn into_request(self, command: &'static Command) -> Result<Request, UsageError> {
        if self.help {
            return Ok(Request::Help(self));
        }
        if self.hydra_help {
            return Ok(Request::HydraHelp(self));
        }
        if self.version {
            return Ok(Request::Version);
        }
        if let Some(completion) = self.completion {
            return Ok(Request::Complete(completion));
        }
        let alone = |flag| UsageError::Alone {
            flag,
            needs: "--cfg",
        };
        if self.show.is_some() && command.is_plain() {
            return Err(UsageError::NoConfig(command.name));
        }
        if self.show.is_none() && self.resolve {
            return Err(alone("--resolve"));
        }
        if self.show.is_none() && self.package.is_some() {
            return Err(alone("--package"));
        }
        if self.multirun {
            let excluded = |flag| UsageError::Excluded("--multirun", flag);
            match self.show {
                _ if self.run => return Err(excluded("--run")),
                Some(Show::Config(_)) => return Err(excluded("--cfg")),
                Some(Show::Info(_)) => return Err(excluded("--info")),
                None => {}
            }
        }
        if self.rerun.is_some() {
            // A recorded config is one config, and comes from nowhere else.
            for (flag, is_given) in [
                ("--multirun", self.multirun),
                ("--config-name", self.config_name.is_some()),
                ("--config-path", self.config_path.is_some()),
                ("--config-dir", self.config_dir.is_some()),
            ] {
                if is_given {
                    return Err(UsageError::Excluded(RERUN_FLAG, flag));
                }
            }
        }
        const TRAIN: &[&str] = &[commands::TRAIN.name];
        const PLAN: &[&str] = &[commands::PLAN.name];
        const DIFF: &[&str] = &[commands::DIFF.name];
        const WITH_JSON: &[&str] = &[
            commands::PLAN.name,
            commands::DIFF.name,
            commands::DOCTOR.name,
        ];
        for (flag, owners, is_given) in [
            ("--multirun", TRAIN, self.multirun),
            (RERUN_FLAG, TRAIN, self.rerun.is_some()),
            (MEMORY, PLAN, self.options.memory_bytes.is_some()),
            (JSON, WITH_JSON, self.options.json),
            (A, DIFF, !self.options.diff.a.is_empty()),
            (B, DIFF, self.options.diff.b.is_some()),
            (TOLERANCE, DIFF, self.options.diff.tolerance.is_some()),
            (MARKDOWN, DIFF, self.options.diff.markdown.is_some()),
        ] {
            let command = command.name;
            if is_given && !owners.contains(&command) {
                return Err(UsageError::ForOther {
                    flag,
                    owners,
                    command,
                });
            }
        }
        Ok(Request::Run(command, self))
    }

    /// Whether the arguments ask for a sweep. `--run` has the last word, so that a job of a sweep is never one itself.
    pub(crate) fn is_sweep(&self) -> bool {
        let by_mode = |text: &String| text == "hydra.mode=MULTIRUN";
        self.multirun
            || (!self.run
                && self.rerun.is_none()
                && self.show.is_none()
                && self.overrides.iter().any(by_mode))
    }
}

#[cfg(test)]
mod tests;
