//! What a command line says, once it is read.

use std::path::PathBuf;

use tt_config::Part;

use crate::shell::Completion;

/// The arguments that shape composition, the same for every command.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) show: Option<Show>,
    pub(crate) package: Option<String>,
    pub(crate) resolve: bool,
    pub(crate) config_name: Option<String>,
    pub(crate) config_path: Option<PathBuf>,
    pub(crate) config_dir: Option<PathBuf>,
    /// Overrides, or for a plain command its operands.
    pub(crate) overrides: Vec<String>,
    pub(crate) run: bool,
    pub(crate) multirun: bool,
    /// All arguments, as given.
    pub(crate) raw: Vec<String>,
    /// The run folder whose config is used instead of one composed.
    pub(crate) rerun: Option<PathBuf>,
    pub(crate) options: Options,
    pub(crate) completion: Option<Completion>,
    pub(crate) help: bool,
    pub(crate) hydra_help: bool,
    pub(crate) version: bool,
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

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Show {
    Config(Part),
    Info(Info),
}

/// What `--info` tells of a composition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Info {
    Config,
    Defaults,
    DefaultsTree,
    Origins,
    Plugins,
    SearchPath,
}

/// What some commands take besides overrides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Of `train`, `plan`, `bench`, `batch`, `diff`, `eval`, `doctor` and `runs`: print JSON.
    pub(crate) json: bool,
    pub(crate) batch: BatchOptions,
    /// Of `plan`: what the run may take; `None`: what the machine has.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) diff: DiffOptions,
    /// Of `bench`: what is measured.
    pub(crate) bench: Option<BenchKind>,
    /// Of `runs`.
    pub(crate) sort: RunsOrder,
    pub(crate) generate: GenerateOptions,
    /// Of `embed`, word for word.
    pub(crate) texts: Vec<String>,
    /// Of `train`: print warnings and errors only.
    pub(crate) quiet: bool,
    /// Of `tokenize`: remove caches that were not used for so many days.
    pub(crate) prune_days: Option<u64>,
    /// Of `report`: plots over a logarithmic axis of steps.
    pub(crate) x_is_log: bool,
}

/// What the command line may say of the batches to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchOptions {
    pub(crate) html: bool,
    pub(crate) count: u64,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            html: false,
            count: 1,
        }
    }
}

/// What `bench` measures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchKind {
    #[default]
    Step,
    Ops,
    Loader,
    Checkpoint,
    Generate,
}

impl BenchKind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Step,
        Self::Ops,
        Self::Loader,
        Self::Checkpoint,
        Self::Generate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Ops => "ops",
            Self::Loader => "loader",
            Self::Checkpoint => "checkpoint",
            Self::Generate => "generate",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What runs are listed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunsOrder {
    #[default]
    Run,
    State,
    Step,
    Loss,
    ValLoss,
    Speed,
}

/// What the command line may say of the prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct GenerateOptions {
    /// Word for word: it does not go through the grammar of overrides.
    pub(crate) prompt: Option<String>,
    pub(crate) prompt_file: Option<PathBuf>,
    /// A flag has set one of the numbers.
    pub(crate) numbers: bool,
}

/// What the command line may say of the variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiffOptions {
    /// Overrides of the first variant and of the second.
    pub(crate) a: Vec<String>,
    pub(crate) b: Option<Vec<String>>,
    /// Relative L2 difference within which tensors agree; `None`: by the variants' precisions.
    pub(crate) tolerance: Option<f64>,
    /// Where to write the report as Markdown.
    pub(crate) markdown: Option<PathBuf>,
}
