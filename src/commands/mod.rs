//! The subcommands, one file each.

mod generate;
pub(crate) mod inspect;
pub(crate) mod show;
mod train;

use std::process::ExitCode;

use tt_config::Composition;

use crate::configs::Groups;
use crate::failure::Failure;
use crate::plugins::Plugins;

/// What a subcommand works from.
pub(crate) struct Invocation {
    pub(crate) composition: Composition,
    pub(crate) plugins: Plugins,
    pub(crate) groups: Groups,
    /// As the user gave them.
    pub(crate) arguments: Vec<String>,
}

/// A subcommand.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) work: Work,
}

impl Command {
    /// Takes operands instead of overrides.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.work, Work::Plain(_))
    }
}

/// How a subcommand works.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// On a configuration whose root config is `config_name`, unless `--config-name` says otherwise.
    Composed {
        config_name: &'static str,
        run: fn(Invocation) -> Result<ExitCode, Failure>,
    },
    /// On its arguments as they are.
    Plain(fn(&[String]) -> Result<ExitCode, Failure>),
}

/// The root config of a run.
pub(crate) const ROOT_CONFIG: &str = "default";

/// What runs when no command is named.
pub(crate) const TRAIN: Command = Command {
    name: "train",
    about: "Train a model; what is done when no command is named",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        run: train::run,
    },
};

const GENERATE: Command = Command {
    name: "generate",
    about: "Continue a prompt: checkpoint=DIR prompt=TEXT",
    work: Work::Composed {
        config_name: "generate",
        run: generate::run,
    },
};

const INSPECT: Command = Command {
    name: "inspect",
    about: "Show a run, or why the configs of two runs differ: RUN [RUN]",
    work: Work::Plain(inspect::run),
};

pub(crate) const TABLE: &[Command] = &[TRAIN, GENERATE, INSPECT];
