//! The flags: one table, from which parsing, the help text and completion are made.

use std::str::FromStr;

use tt_config::{Part, nearest};
use tt_report::number;
use tt_run::ending::RERUN_FLAG;

use super::usage::UsageError;
use crate::args::{Args, Info, RunsOrder, Show};
use crate::commands::{self, diff};
use crate::shell::Completion;

/// One flag. `value` names the value in the help text; a flag without one is a switch.
pub(super) struct Flag {
    pub(super) long: &'static str,
    pub(super) short: Option<&'static str>,
    pub(super) value: Option<&'static str>,
    pub(super) about: &'static str,
    set: fn(&mut Args, String) -> Result<(), BadValue>,
}

/// A value that a flag does not take; says what it would.
struct BadValue(&'static str);

pub(super) const MULTIRUN: &str = "--multirun";
pub(super) const MEMORY: &str = "--memory";
pub(super) const JSON: &str = "--json";
pub(super) const QUIET: &str = "--quiet";
pub(super) const HTML: &str = "--html";
pub(super) const COUNT: &str = "--count";
pub(super) const MERGE: &str = "--merge";
pub(super) const A: &str = "--a";
pub(super) const B: &str = "--b";
pub(super) const TOLERANCE: &str = "--tolerance";
pub(super) const MARKDOWN: &str = "--markdown";
pub(super) const SORT: &str = "--sort";
pub(super) const LOG_X: &str = "--log-x";
pub(super) const PRUNE: &str = "--prune";

pub(super) const PROMPT: &str = "--prompt";
pub(super) const PROMPT_FILE: &str = "--prompt-file";
pub(super) const MAX_NEW_TOKENS: &str = "--max-new-tokens";
pub(super) const TEMPERATURE: &str = "--temperature";
pub(super) const TOP_P: &str = "--top-p";
pub(super) const SEED: &str = "--seed";
pub(super) const TEXT: &str = "--text";

/// What a flag's value is called that is an override.
const OVERRIDE: &str = "OVERRIDE";

/// Flags that Hydra does not have.
const OWN: &[&str] = &[
    "--version",
    MEMORY,
    JSON,
    HTML,
    COUNT,
    MERGE,
    A,
    B,
    TOLERANCE,
    MARKDOWN,
    SORT,
    LOG_X,
    PRUNE,
    QUIET,
    PROMPT,
    PROMPT_FILE,
    MAX_NEW_TOKENS,
    TEMPERATURE,
    TOP_P,
    SEED,
    TEXT,
];

/// A short form may have two letters, as in Hydra; so switches cannot be bundled.
pub(super) const FLAGS: &[Flag] = &[
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
        long: MULTIRUN,
        short: Some("-m"),
        value: None,
        about: "Run a job for each combination of the values given: lr=1e-3,1e-4",
        set: |args, _| {
            args.multirun = true;
            Ok(())
        },
    },
    Flag {
        long: RERUN_FLAG,
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
                number::parse_bytes(&value).ok_or(BadValue("a size such as 24GB or 512MiB"))?;
            args.options.memory_bytes = Some(bytes);
            Ok(())
        },
    },
    Flag {
        long: JSON,
        short: None,
        value: None,
        about: "JSON: train's rows; plan, bench, batch, diff, eval, doctor, runs",
        set: |args, _| {
            args.options.json = true;
            Ok(())
        },
    },
    Flag {
        long: QUIET,
        short: None,
        value: None,
        about: "With train: print warnings and errors only",
        set: |args, _| {
            args.options.quiet = true;
            Ok(())
        },
    },
    Flag {
        long: HTML,
        short: None,
        value: None,
        about: "With batch: print a page",
        set: |args, _| {
            args.options.batch.html = true;
            Ok(())
        },
    },
    Flag {
        long: COUNT,
        short: None,
        value: Some("COUNT"),
        about: "With batch: how many [default: 1]",
        set: |args, value| {
            args.options.batch.count = value.parse().map_err(|_| BadValue("a number"))?;
            Ok(())
        },
    },
    Flag {
        long: PRUNE,
        short: None,
        value: Some("DAYS"),
        about: "With tokenize: remove token caches unused for so many days",
        set: |args, value| {
            let days = value.parse().map_err(|_| BadValue("a number of days"))?;
            args.options.prune_days = Some(days);
            Ok(())
        },
    },
    Flag {
        long: A,
        short: None,
        value: Some(OVERRIDE),
        about: "With diff: what variant A changes [default: nothing]; repeatable",
        set: |args, value| {
            args.options.diff.a.extend(diff::split(&value));
            Ok(())
        },
    },
    Flag {
        long: B,
        short: None,
        value: Some(OVERRIDE),
        about: "With diff: what variant B changes; repeatable",
        set: |args, value| {
            let overrides = args.options.diff.b.get_or_insert_default();
            overrides.extend(diff::split(&value));
            Ok(())
        },
    },
    Flag {
        long: TOLERANCE,
        short: None,
        value: Some("NUMBER"),
        about: "With diff: relative L2 error to accept [default: by precision]",
        set: |args, value| {
            let number = value.parse().ok().filter(|number: &f64| *number >= 0.0);
            let expected = BadValue("a number such as 1e-4");
            args.options.diff.tolerance = Some(number.ok_or(expected)?);
            Ok(())
        },
    },
    Flag {
        long: MARKDOWN,
        short: None,
        value: Some("FILE"),
        about: "With diff: also write the report to this file, as Markdown",
        set: |args, value| {
            args.options.diff.markdown = Some(value.into());
            Ok(())
        },
    },
    Flag {
        long: SORT,
        short: None,
        value: Some("COLUMN"),
        about: "With runs: by run, state, step, loss, val_loss or speed",
        set: |args, value| {
            args.options.sort = match value.as_str() {
                "run" => RunsOrder::Run,
                "state" => RunsOrder::State,
                "step" => RunsOrder::Step,
                "loss" => RunsOrder::Loss,
                "val_loss" => RunsOrder::ValLoss,
                "speed" => RunsOrder::Speed,
                _ => return Err(BadValue("run, state, step, loss, val_loss or speed")),
            };
            Ok(())
        },
    },
    Flag {
        long: LOG_X,
        short: None,
        value: None,
        about: "With report: draw the plots over a logarithmic axis of steps",
        set: |args, _| {
            args.options.x_is_log = true;
            Ok(())
        },
    },
    Flag {
        long: PROMPT,
        short: None,
        value: Some("TEXT"),
        about: "With generate: the text to continue, word for word",
        set: |args, value| {
            args.options.generate.prompt = Some(value);
            Ok(())
        },
    },
    Flag {
        long: PROMPT_FILE,
        short: None,
        value: Some("FILE"),
        about: "With generate: a file with the text to continue",
        set: |args, value| {
            args.options.generate.prompt_file = Some(value.into());
            Ok(())
        },
    },
    Flag {
        long: MAX_NEW_TOKENS,
        short: None,
        value: Some("COUNT"),
        about: "With generate: tokens to add at most",
        set: |args, value| args.set_number::<u64>("max_new_tokens", &value),
    },
    Flag {
        long: TEMPERATURE,
        short: None,
        value: Some("NUMBER"),
        about: "With generate: divides the logits; 0 takes the most likely token",
        set: |args, value| args.set_number::<f32>("temperature", &value),
    },
    Flag {
        long: TOP_P,
        short: None,
        value: Some("NUMBER"),
        about: "With generate: draw from the likeliest up to this probability",
        set: |args, value| args.set_number::<f32>("top_p", &value),
    },
    Flag {
        long: SEED,
        short: None,
        value: Some("NUMBER"),
        about: "With generate: another seed, another text",
        set: |args, value| args.set_number::<u64>("seed", &value),
    },
    Flag {
        long: TEXT,
        short: None,
        value: Some("TEXT"),
        about: "With embed: a text, word for word; repeatable",
        set: |args, value| {
            args.options.texts.push(value);
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

/// The commands that a flag is for; `None`: all.
pub(super) fn owners(flag: &str) -> Option<&'static [&'static str]> {
    const TRAIN: &[&str] = &[commands::TRAIN.name];
    const PLAN: &[&str] = &[commands::PLAN.name];
    const RECORDED: &[&str] = &[commands::TRAIN.name, commands::PLAN.name];
    const BATCH: &[&str] = &[commands::BATCH.name];
    const DIFF: &[&str] = &[commands::DIFF.name];
    const GENERATE: &[&str] = &[commands::GENERATE.name];
    const EMBED: &[&str] = &[commands::EMBED.name];
    const EXPORT: &[&str] = &[commands::EXPORT.name];
    const WITH_JSON: &[&str] = &[
        commands::TRAIN.name,
        commands::PLAN.name,
        commands::BENCH.name,
        commands::BATCH.name,
        commands::DIFF.name,
        commands::EVAL.name,
        commands::DOCTOR.name,
        commands::RUNS.name,
    ];
    const RUNS: &[&str] = &[commands::RUNS.name];
    const TOKENIZE: &[&str] = &[commands::TOKENIZE.name];
    const REPORT: &[&str] = &[commands::REPORT.name];
    match flag {
        MULTIRUN | QUIET => Some(TRAIN),
        RERUN_FLAG => Some(RECORDED),
        MEMORY => Some(PLAN),
        JSON => Some(WITH_JSON),
        HTML | COUNT => Some(BATCH),
        A | B | TOLERANCE | MARKDOWN => Some(DIFF),
        PROMPT | PROMPT_FILE | MAX_NEW_TOKENS | TEMPERATURE | TOP_P | SEED => Some(GENERATE),
        TEXT => Some(EMBED),
        MERGE => Some(EXPORT),
        SORT => Some(RUNS),
        LOG_X => Some(REPORT),
        PRUNE => Some(TOKENIZE),
        _ => None,
    }
}

impl Args {
    /// The override that sets a key of the command to a number.
    fn set_number<T: FromStr>(&mut self, key: &'static str, value: &str) -> Result<(), BadValue> {
        value.parse::<T>().map_err(|_| BadValue("a number"))?;
        self.overrides.push(format!("{key}={value}"));
        self.options.generate.numbers = true;
        Ok(())
    }
}

pub(super) fn flag_named(name: &str) -> Result<&'static Flag, UsageError> {
    FLAGS
        .iter()
        .find(|flag| flag.long == name || flag.short == Some(name))
        .ok_or_else(|| UsageError::UnknownFlag {
            flag: name.to_owned(),
            nearest: nearest(name, FLAGS.iter().map(|flag| flag.long)).map(str::to_owned),
        })
}

impl Flag {
    pub(super) fn apply(
        &self,
        args: &mut Args,
        name: &str,
        value: Option<String>,
    ) -> Result<(), UsageError> {
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

    pub(super) fn usage(&self) -> String {
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

/// If `word` is a flag whose value is an override.
pub(crate) fn takes_override(word: &str) -> bool {
    flag_named(word).is_ok_and(|flag| flag.value == Some(OVERRIDE))
}
