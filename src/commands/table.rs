//! The table of subcommands.

use std::process::ExitCode;

use tt_config::Diagnostics;

use super::{
    batch, bench, diff, doctor, embed, eval, export, generate, inspect, plan, report, runs, sync,
    tokenize, train, upload,
};
use crate::args::Options;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::plugins::Plugins;
use crate::setup::Setup;

/// A subcommand.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) work: Work,
}

impl Command {
    /// Takes operands instead of overrides.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.work, Work::Plain(_) | Work::Recorded(_))
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
        /// Finds what is wrong with the configuration itself.
        check: fn(&Invocation) -> Result<(), Diagnostics>,
        run: fn(Invocation) -> Result<ExitCode, Failure>,
    },
    /// On its arguments as they are.
    Plain(fn(&[String], &Options) -> Result<ExitCode, Failure>),
    /// The same, with what there is to choose from where recorded configs name it.
    Recorded(fn(&[String], &Plugins) -> Result<ExitCode, Failure>),
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
        check: check_run,
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
        check: check_run,
        run: plan::run,
    },
};

/// What measures the speed of a run's parts.
pub(crate) const BENCH: Command = Command {
    name: "bench",
    about: "Measure a run's speed: step, ops, loader, checkpoint or generate",
    work: Work::Composed {
        config_name: "bench",
        on_device: true,
        check: bench::check,
        run: bench::run,
    },
};

/// What shows batches.
pub(crate) const BATCH: Command = Command {
    name: "batch",
    about: "Show the first batches as the trainer gets them; needs no model",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: false,
        check: batch::check,
        run: batch::run,
    },
};

pub(crate) const TOKENIZE: Command = Command {
    name: "tokenize",
    about: "Make the tokens of the training data ahead of runs; needs no model",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: false,
        check: batch::check,
        run: tokenize::run,
    },
};

/// What compares two variants of a run.
pub(crate) const DIFF: Command = Command {
    name: "diff",
    about: "Compare two variants of a run, --a and --b, tensor by tensor",
    work: Work::Composed {
        config_name: ROOT_CONFIG,
        on_device: true,
        check: check_run,
        run: diff::run,
    },
};

/// What measures a trained model.
pub(crate) const EVAL: Command = Command {
    name: "eval",
    about: "Measure a model: its loss, or its answers: checkpoint=DIR",
    work: Work::Composed {
        config_name: "eval",
        on_device: true,
        check: eval::check,
        run: eval::run,
    },
};

/// What makes vectors of texts.
pub(crate) const EMBED: Command = Command {
    name: "embed",
    about: "Make vectors of texts: checkpoint=DIR input=FILE out=FILE.npy",
    work: Work::Composed {
        config_name: "embed",
        on_device: true,
        check: embed::check,
        run: embed::run,
    },
};

/// What continues a text.
pub(crate) const GENERATE: Command = Command {
    name: "generate",
    about: "Continue a text: checkpoint=DIR --prompt TEXT",
    work: Work::Composed {
        config_name: "generate",
        on_device: true,
        check: generate::check,
        run: generate::run,
    },
};

/// What writes a model for other programs.
pub(crate) const EXPORT: Command = Command {
    name: "export",
    about: "Write a model for other programs: checkpoint=DIR out=DIR [--merge]",
    work: Work::Composed {
        config_name: "export",
        on_device: true,
        check: export::check,
        run: export::run,
    },
};

const UPLOAD: Command = Command {
    name: "upload",
    about: "Send a model to the Hub: checkpoint=DIR repo=USER/NAME",
    work: Work::Composed {
        config_name: "upload",
        on_device: false,
        check: upload::check,
        run: upload::run,
    },
};

const INSPECT: Command = Command {
    name: "inspect",
    about: "Show a run, or why the configs of two runs differ: RUN [RUN]",
    work: Work::Recorded(inspect::run),
};

/// What shows runs as a page.
pub(crate) const REPORT: Command = Command {
    name: "report",
    about: "Show runs or a sweep as a page, side by side: RUN [RUN ...]",
    work: Work::Plain(report::run),
};

/// What lists runs.
pub(crate) const RUNS: Command = Command {
    name: "runs",
    about: "List runs, how far they came and their losses: [FOLDER]",
    work: Work::Plain(runs::run),
};

/// What looks at the machine.
pub(crate) const DOCTOR: Command = Command {
    name: "doctor",
    about: "Report what this machine has for training, and try its TPU",
    work: Work::Plain(doctor::run),
};

const SYNC: Command = Command {
    name: "sync",
    about: "Send to Weights & Biases what runs have logged offline: [FOLDER]",
    work: Work::Plain(sync::run),
};

pub(crate) const TABLE: &[Command] = &[
    TRAIN, PLAN, BENCH, BATCH, TOKENIZE, DIFF, EVAL, EMBED, GENERATE, EXPORT, UPLOAD, INSPECT,
    RUNS, REPORT, SYNC, DOCTOR,
];

fn check_run(invocation: &Invocation) -> Result<(), Diagnostics> {
    Setup::read(invocation).map(drop)
}
