//! The subcommands, one file each.

pub(crate) mod diff;
mod doctor;
mod export;
mod generate;
pub(crate) mod inspect;
mod plan;
pub(crate) mod show;
mod train;

use std::process::ExitCode;

use tt_config::{Composer, Composition, Diagnostics};

use crate::commands::diff::DiffOptions;
use crate::failure::Failure;
use crate::migration;
use crate::plugins::Plugins;

/// What a subcommand works from.
pub(crate) struct Invocation {
    pub(crate) composition: Composition,
    pub(crate) plugins: Plugins,
    /// What the composition was made by, and from which overrides.
    pub(crate) composer: Composer,
    pub(crate) overrides: Vec<String>,
    /// All arguments, as the user gave them.
    pub(crate) arguments: Vec<String>,
    pub(crate) options: Options,
}

/// What some commands take besides overrides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Of `plan`, `diff` and `doctor`: print JSON.
    pub(crate) json: bool,
    /// Of `plan`: what the run may take; `None`: what the machine has.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) diff: DiffOptions,
}

impl Invocation {
    /// The same with more overrides.
    pub(crate) fn with(&self, more: &[String]) -> Result<Self, Diagnostics> {
        let overrides = [self.overrides.as_slice(), more].concat();
        let mut composition = self.composer.compose(&overrides)?;
        migration::apply(&mut composition, &self.plugins);
        Ok(Self {
            composition,
            plugins: self.plugins.clone(),
            composer: self.composer.clone(),
            overrides,
            arguments: self.arguments.clone(),
            options: self.options.clone(),
        })
    }
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
        /// Whether it computes on `device`, and so in a worker if that is a TPU: see `supervise`.
        on_device: bool,
        run: fn(Invocation) -> Result<ExitCode, Failure>,
    },
    /// On its arguments as they are.
    Plain(fn(&[String], &Options) -> Result<ExitCode, Failure>),
}

/// The root config of a run.
pub(crate) const ROOT_CONFIG: &str = "default";

/// What runs when no command is named.
pub(crate) const TRAIN: Command = Command {
    name: "train",
    about: "Train a model; what is done when no command is named",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: true,
        run: train::run,
    },
};

/// What says before a run what it will take.
pub(crate) const PLAN: Command = Command {
    name: "plan",
    about: "Say what a run will take: memory, FLOPs, checkpoints",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: false,
        run: plan::run,
    },
};

/// What compares two variants of a run.
pub(crate) const DIFF: Command = Command {
    name: "diff",
    about: "Compare two variants of a run, --a and --b, tensor by tensor",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: true,
        run: diff::run,
    },
};

const GENERATE: Command = Command {
    name: "generate",
    about: "Continue a prompt: checkpoint=DIR prompt=TEXT",
    work: Work::Composed {
        config_name: "generate",
        on_device: true,
        run: generate::run,
    },
};

const EXPORT: Command = Command {
    name: "export",
    about: "Write a model for other programs: checkpoint=DIR out=DIR [--merge]",
    work: Work::Composed {
        config_name: "export",
        on_device: true,
        run: export::run,
    },
};

const INSPECT: Command = Command {
    name: "inspect",
    about: "Show a run, or why the configs of two runs differ: RUN [RUN]",
    work: Work::Plain(inspect::run),
};

/// What looks at the machine.
pub(crate) const DOCTOR: Command = Command {
    name: "doctor",
    about: "Report what this machine has for training, and try its TPU",
    work: Work::Plain(doctor::run),
};

pub(crate) const TABLE: &[Command] = &[TRAIN, PLAN, DIFF, GENERATE, EXPORT, INSPECT, DOCTOR];
