//! The subcommands, one file each.

mod generate;
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
    /// Its root config, unless `--config-name` says otherwise.
    pub(crate) config_name: &'static str,
    pub(crate) run: fn(Invocation) -> Result<ExitCode, Failure>,
}

/// What runs when no command is named.
pub(crate) const TRAIN: Command = Command {
    name: "train",
    about: "Train a model; what is done when no command is named",
    config_name: "default",
    run: train::run,
};

const GENERATE: Command = Command {
    name: "generate",
    about: "Continue a prompt with a checkpoint's model: checkpoint=DIR prompt=TEXT",
    config_name: "generate",
    run: generate::run,
};

pub(crate) const TABLE: &[Command] = &[TRAIN, GENERATE];
