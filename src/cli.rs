//! The command line, defined once: `tpu-train [COMMAND] [FLAG | OVERRIDE]...`.
//!
//! Flags keep the names and meaning they have in Hydra, which reads them as Python's argparse does: a value follows as
//! the next argument or after `=`, flags and overrides may be mixed, `--` ends the flags. What is neither a flag nor a
//! command is an override, and composition reads it.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::commands::plan::{self, PlanOptions};
use crate::commands::show::{Info, Show};
use crate::commands::{self, Command};
use crate::completion::Completion;
use crate::rerun;
use tt_config::Part;

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
    pub(crate) plan: PlanOptions,
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
    #[error("`{flag}` is for `{owner}`, not for `{command}`")]
    ForOther {
        flag: &'static str,
        owner: &'static str,
        command: &'static str,
    },
    #[error("`{0}` composes no config: it takes neither --cfg nor --info")]
    NoConfig(&'static str),
    #[error("argument is not UTF-8: {0:?}")]
    NotUtf8(OsString),
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    }
}

/// One flag. `value` names the value in the help text; a flag without one is a switch.
struct Flag {
    long: &'static str,
    short: Option<&'static str>,
    value: Option<&'static str>,
    about: &'static str,
    set: fn(&mut Args, String) -> Result<(), BadValue>,
}

/// A value that a flag does not take; says what it would.
struct BadValue(&'static str);

const MEMORY: &str = "--memory";
const JSON: &str = "--json";
const MERGE: &str = "--merge";

/// Flags that Hydra does not have.
const OWN: &[&str] = &["--version", MEMORY, JSON, MERGE];

/// A short form may have two letters, as in Hydra; so switches cannot be bundled.
const FLAGS: &[Flag] = &[
    Flag {
        long: "--cfg",
        short: Some("-c"),
        value: Some("job|hydra|all"),
        about: "Print the config instead of running",
        set: |args, value| {
            args.show = Some(Show::Config(match value.as_str() {
                "job" => Part::Job,
                "hydra" => Part::Hydra,
                "all" => Part::All,
                _ => return Err(BadValue("job, hydra or all")),
            }));
            Ok(())
        },
    },
    Flag {
        long: "--info",
        short: Some("-i"),
        value: Some("WHAT"),
        about: "Show origins, plugins, config, defaults, defaults-tree, searchpath",
        set: |args, value| {
            args.show = Some(Show::Info(match value.as_str() {
                "config" => Info::Config,
                "defaults" => Info::Defaults,
                "defaults-tree" => Info::DefaultsTree,
                "origins" => Info::Origins,
                "plugins" => Info::Plugins,
                "searchpath" => Info::SearchPath,
                _ => {
                    return Err(BadValue(
                        "config, defaults, defaults-tree, origins, plugins or searchpath",
                    ));
                }
            }));
            Ok(())
        },
    },
    Flag {
        long: "--resolve",
        short: None,
        value: None,
        about: "With --cfg: resolve interpolations before printing",
        set: |args, _| {
            args.resolve = true;
            Ok(())
        },
    },
    Flag {
        long: "--package",
        short: Some("-p"),
        value: Some("KEY"),
        about: "With --cfg or --info: only the part at this key",
        set: |args, value| {
            args.package = Some(value);
            Ok(())
        },
    },
    Flag {
        long: "--config-name",
        short: Some("-cn"),
        value: Some("NAME"),
        about: "The root config [default: the command's own]",
        set: |args, value| {
            args.config_name = Some(value);
            Ok(())
        },
    },
    Flag {
        long: "--config-path",
        short: Some("-cp"),
        value: Some("DIR"),
        about: "Where configs are looked for first [default: ./configs]",
        set: |args, value| {
            args.config_path = Some(value.into());
            Ok(())
        },
    },
    Flag {
        long: "--config-dir",
        short: Some("-cd"),
        value: Some("DIR"),
        about: "One more folder to look for configs in",
        set: |args, value| {
            args.config_dir = Some(value.into());
            Ok(())
        },
    },
    Flag {
        long: "--run",
        short: Some("-r"),
        value: None,
        about: "Run one job, as is done without it",
        set: |args, _| {
            args.run = true;
            Ok(())
        },
    },
    Flag {
        long: "--multirun",
        short: Some("-m"),
        value: None,
        about: "Run a job for each combination of the values given: lr=1e-3,1e-4",
        set: |args, _| {
            args.multirun = true;
            Ok(())
        },
    },
    Flag {
        long: rerun::FLAG,
        short: None,
        value: Some("RUN"),
        about: "Run again what a run folder has recorded, in a new folder",
        set: |args, value| {
            args.rerun = Some(value.into());
            Ok(())
        },
    },
    Flag {
        long: MEMORY,
        short: None,
        value: Some("SIZE"),
        about: "With plan: what there is, as 24GB [default: this machine's]",
        set: |args, value| {
            let bytes =
                plan::parse_bytes(&value).ok_or(BadValue("a size such as 24GB or 512MiB"))?;
            args.plan.memory_bytes = Some(bytes);
            Ok(())
        },
    },
    Flag {
        long: JSON,
        short: None,
        value: None,
        about: "With plan: print JSON",
        set: |args, _| {
            args.plan.json = true;
            Ok(())
        },
    },
    Flag {
        long: "--shell-completion",
        short: Some("-sc"),
        value: Some("ACTION"),
        about: "Print code to evaluate: install= or uninstall=bash|zsh|fish",
        set: |args, value| {
            let expected = "install= or uninstall= with bash, zsh or fish";
            let completion = Completion::parse(&value).ok_or(BadValue(expected))?;
            args.completion = Some(completion);
            Ok(())
        },
    },
    Flag {
        long: MERGE,
        short: None,
        value: None,
        about: "With export: merge an adapter into the model it is on",
        set: |args, _| {
            args.overrides.push("merge=true".to_owned());
            Ok(())
        },
    },
    Flag {
        long: "--version",
        short: Some("-V"),
        value: None,
        about: "Print the version",
        set: |args, _| {
            args.version = true;
            Ok(())
        },
    },
    Flag {
        long: "--hydra-help",
        short: None,
        value: None,
        about: "Print Hydra's flags and settings",
        set: |args, _| {
            args.hydra_help = true;
            Ok(())
        },
    },
    Flag {
        long: "--help",
        short: Some("-h"),
        value: None,
        about: "Print this help",
        set: |args, _| {
            args.help = true;
            Ok(())
        },
    },
];

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

fn flag_named(name: &str) -> Result<&'static Flag, UsageError> {
    FLAGS
        .iter()
        .find(|flag| flag.long == name || flag.short == Some(name))
        .ok_or_else(|| UsageError::UnknownFlag {
            flag: name.to_owned(),
            nearest: nearest(name, FLAGS.iter().map(|flag| flag.long)),
        })
}

/// The known word that `word` is most likely a slip of.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len())
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

impl Flag {
    fn apply(&self, args: &mut Args, name: &str, value: Option<String>) -> Result<(), UsageError> {
        let flag = || name.to_owned();
        let value = match (self.value, value) {
            (Some(_), Some(value)) => value,
            (None, None) => String::new(),
            (Some(expected), None) => {
                return Err(UsageError::MissingValue {
                    flag: flag(),
                    value: expected,
                });
            }
            (None, Some(_)) => return Err(UsageError::UnexpectedValue { flag: flag() }),
        };
        (self.set)(args, value.clone()).map_err(|BadValue(expected)| UsageError::BadValue {
            flag: flag(),
            value,
            expected,
        })
    }
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
                    return Err(UsageError::Excluded(rerun::FLAG, flag));
                }
            }
        }
        let (train, plan) = (commands::TRAIN.name, commands::PLAN.name);
        for (flag, owner, is_given) in [
            ("--multirun", train, self.multirun),
            (rerun::FLAG, train, self.rerun.is_some()),
            (MEMORY, plan, self.plan.memory_bytes.is_some()),
            (JSON, plan, self.plan.json),
        ] {
            let command = command.name;
            if is_given && command != owner {
                return Err(UsageError::ForOther {
                    flag,
                    owner,
                    command,
                });
            }
        }
        Ok(Request::Run(command, self))
    }
}

impl Args {
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

/// The flags that Hydra has as well, as the help text shows them.
pub(crate) fn hydra_flags() -> impl Iterator<Item = (String, &'static str)> {
    let flags = FLAGS.iter().filter(|flag| !OWN.contains(&flag.long));
    flags.map(|flag| (flag.usage(), flag.about))
}

/// The long form of every flag.
pub(crate) fn flags() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|flag| flag.long)
}

/// If `word` is a flag whose value comes next: the values it names, none where any text will do.
pub(crate) fn values_after(word: &str) -> Option<Vec<&'static str>> {
    let flag = flag_named(word).ok()?;
    let values = flag.value?.split('|');
    Some(
        values
            .filter(|value| !value.contains(char::is_uppercase))
            .collect(),
    )
}

/// The help text; `groups` are the config groups with their options.
pub(crate) fn help(groups: &[(String, Vec<String>)]) -> String {
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
    let mut text = String::from(HELP_HEAD);
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
    (1, "the run failed"),
    (2, "the request was wrong"),
    (75, "preempted; the same command continues"),
    (130, "interrupted; the same command continues"),
];

impl Flag {
    fn usage(&self) -> String {
        let names = match self.short {
            Some(short) => format!("{}, {short}", self.long),
            None => self.long.to_owned(),
        };
        match self.value {
            Some(value) => format!("{names} {value}"),
            None => names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Args, UsageError> {
        match parse(args.iter().map(OsString::from))? {
            Request::Run(_, args) => Ok(args),
            _ => panic!("{args:?} asks for a text"),
        }
    }

    #[test]
    fn flags_and_overrides_mix_in_any_order() {
        let args = parsed(&[
            "+model=qwen2",
            "--cfg",
            "job",
            "lr=5e-5",
            "-p=trainer",
            "--resolve",
        ]);
        let args = args.unwrap();
        assert_eq!(args.overrides, ["+model=qwen2", "lr=5e-5"]);
        assert_eq!(args.show, Some(Show::Config(Part::Job)));
        assert_eq!(args.package.as_deref(), Some("trainer"));
        assert!(args.resolve);
    }

    #[test]
    fn short_forms_have_one_letter_or_two() {
        let args = parsed(&["-cn", "mine", "-cd=more", "-c", "all"]).unwrap();
        assert_eq!(args.config_name.as_deref(), Some("mine"));
        assert_eq!(args.config_dir, Some("more".into()));
        assert_eq!(args.show, Some(Show::Config(Part::All)));
    }

    #[test]
    fn everything_after_two_dashes_is_an_override() {
        assert_eq!(
            parsed(&["--", "--cfg=job"]).unwrap().overrides,
            ["--cfg=job"]
        );
    }

    #[test]
    fn a_value_may_begin_with_a_dash() {
        assert_eq!(
            parsed(&["-cn", "-odd"]).unwrap().config_name.as_deref(),
            Some("-odd")
        );
    }

    #[test]
    fn a_command_may_follow_its_overrides() {
        assert_eq!(parsed(&["lr=1", "train"]).unwrap().overrides, ["lr=1"]);
    }

    #[test]
    fn operands_of_inspect_are_paths_even_if_they_look_like_commands() {
        let args = parsed(&["inspect", "train", "b"]).unwrap();
        assert_eq!(args.overrides, ["train", "b"]);
    }

    #[test]
    fn what_cannot_be_read_is_told_apart() {
        let message = |args: &[&str]| parsed(args).unwrap_err().to_string();
        assert_eq!(
            message(&["--cfgs"]),
            "unknown flag `--cfgs`, did you mean `--cfg`?"
        );
        assert_eq!(
            message(&["--cfg"]),
            "flag `--cfg` needs a value: job|hydra|all"
        );
        assert_eq!(
            message(&["-c=x"]),
            "`x` is not a value of `-c`: job, hydra or all"
        );
        assert_eq!(message(&["--resolve=1"]), "flag `--resolve` takes no value");
        assert_eq!(
            message(&["--resolve"]),
            "flag `--resolve` does nothing without `--cfg`"
        );
        assert!(message(&["trian"]).contains("did you mean `train`?"));
        assert_eq!(
            message(&["-m", "--cfg=job"]),
            "flags `--multirun` and `--cfg` exclude each other"
        );
        assert_eq!(
            message(&["--experimental-rerun=a", "-cn", "b"]),
            "flags `--experimental-rerun` and `--config-name` exclude each other"
        );
        assert_eq!(
            message(&["generate", "-m"]),
            "`--multirun` is for `train`, not for `generate`"
        );
        assert_eq!(
            message(&["--json"]),
            "`--json` is for `plan`, not for `train`"
        );
        assert_eq!(
            message(&["plan", "--memory=much"]),
            "`much` is not a value of `--memory`: a size such as 24GB or 512MiB"
        );
    }

    #[test]
    fn every_flag_is_distinct_sorted_into_the_help_and_documented() {
        let help = help(&[("model".into(), vec!["qwen2".into()])]);
        let mut names = Vec::new();
        for flag in FLAGS {
            assert!(flag.long.starts_with("--"), "{}", flag.long);
            assert!(
                flag.about.starts_with(|c: char| c.is_uppercase()),
                "{}",
                flag.long
            );
            assert!(!flag.about.ends_with('.'), "{}", flag.long);
            assert!(help.contains(&flag.usage()), "{}", flag.long);
            names.push(flag.long);
            names.extend(flag.short);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }
}
