//! [`App`]: the command line with the plug-ins it knows.

use std::ffi::OsString;
use std::process::ExitCode;

use tt_collators::BuildCollator;
use tt_config::Entry;
use tt_data::OpenSource;
use tt_metrics::{BuildSink, transcript};
use tt_models::BuildModel;
use tt_optimizers::BuildOptimizer;
use tt_tensor::Isa;
use tt_train::BuildTrainer;

use crate::cli::{self, Request};
use crate::commands::{ROOT_CONFIG, TRAIN, Work, show, train};
use crate::completion;
use crate::config;
use crate::configs;
use crate::defaults;
use crate::device::DeviceConfig;
use crate::failure::Failure;
use crate::hydra_help;
use crate::invocation::Invocation;
use crate::migration;
use crate::out;
use crate::plugins::Plugins;
use crate::ranks;
use crate::rerun;
use crate::supervise;
use crate::sweep;
use tt_run::program::{self, Program, TPU_TRAIN};

/// The program. What is added replaces a built-in of the same name.
pub struct App {
    plugins: Plugins,
    program: Program,
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

impl App {
    /// With the built-in models, trainers, optimizers, collators, data sources and sinks.
    pub fn new() -> Self {
        Self {
            plugins: Plugins::built_in(),
            program: TPU_TRAIN,
        }
    }

    /// The same under another name, which help, `--version`, completion and commands to type then have:
    /// `App::named("my-lab", env!("CARGO_PKG_VERSION"))`. Without it they say `tpu-train`.
    pub fn named(name: &'static str, version: &'static str) -> Self {
        Self {
            program: Program { name, version },
            ..Self::new()
        }
    }

    /// Adds a model: what `model.type` may name.
    pub fn with_model(mut self, entry: Entry<BuildModel>) -> Self {
        self.plugins.models = self.plugins.models.with(entry);
        self
    }

    /// Adds a trainer: what `trainer.type` may name.
    pub fn with_trainer(mut self, entry: Entry<BuildTrainer>) -> Self {
        self.plugins.trainers = self.plugins.trainers.with(entry);
        self
    }

    /// Adds an optimizer: what `trainer.optimizer.type` may name.
    pub fn with_optimizer(mut self, entry: Entry<BuildOptimizer>) -> Self {
        self.plugins.optimizers = self.plugins.optimizers.with(entry);
        self
    }

    /// Adds a collator: what `data.collator.type` may name.
    pub fn with_collator(mut self, entry: Entry<BuildCollator>) -> Self {
        self.plugins.collators = self.plugins.collators.with(entry);
        self
    }

    /// Adds a data source: what `data.dataset.url` may name.
    pub fn with_source(mut self, entry: Entry<OpenSource>) -> Self {
        self.plugins.sources = self.plugins.sources.with(entry);
        self
    }

    /// Adds a sink of metrics: what `logging.sinks.NAME.type` may name.
    pub fn with_sink(mut self, entry: Entry<BuildSink>) -> Self {
        self.plugins.sinks = self.plugins.sinks.with(entry);
        self
    }

    /// Adds config files: (path below the root of the configs, text). They come after those of `./configs` and before the
    /// built-in ones, so `trainer/mine.yaml` makes `+trainer=mine` known.
    pub fn with_configs(mut self, files: &'static [(&'static str, &'static str)]) -> Self {
        self.plugins.configs = files;
        self
    }

    /// Does what the arguments after the program's name ask for. Errors are printed here, once.
    pub fn run(self, args: impl IntoIterator<Item = OsString>) -> ExitCode {
        program::set(self.program);
        let begun = tt_launch::begin().map_err(Failure::run);
        if let Some(supervisor) = tt_launch::worker::supervisor() {
            program::works_for(supervisor);
        }
        let done = begun.and_then(|()| self.try_run(args));
        let done = done.and_then(|code| out::finish().map(|()| code).map_err(Failure::Run));
        let code = done.unwrap_or_else(|failure| {
            out::error_line(&failure);
            failure.exit_code()
        });
        transcript::end();
        // First: where a rank has failed, the process ends with the others.
        tt_launch::worker::set_exit_code(code);
        ranks::end(code);
        code
    }

    fn try_run(self, args: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
        let own = self.plugins.configs;
        match cli::parse(args).map_err(Failure::request)? {
            Request::Help(command, args) => {
                let root_config = match command.map(|command| command.work) {
                    Some(Work::Composed { config_name, .. }) => config_name,
                    _ => ROOT_CONFIG,
                };
                out::text(cli::help(
                    self.program.name,
                    command,
                    &configs::composer(&args, own, root_config)?.groups(),
                ));
                Ok(ExitCode::SUCCESS)
            }
            Request::Version => {
                let Program { name, version } = self.program;
                out::line(format!("{name} {version}"));
                Ok(ExitCode::SUCCESS)
            }
            Request::HydraHelp(args) => {
                let composer = configs::composer(&args, own, ROOT_CONFIG)?;
                out::text(hydra_help::text(&composer.compose(&args.overrides)?));
                Ok(ExitCode::SUCCESS)
            }
            Request::Complete(asked) => {
                out::text(completion::text(asked, &self.plugins));
                Ok(ExitCode::SUCCESS)
            }
            Request::Run(command, args) => {
                let follow = |task, others: &_| train::follow(task, self.plugins.clone(), others);
                if let Some(code) = ranks::begin(DeviceConfig::open_as_told, follow)? {
                    return Ok(code);
                }
                if command.name != TRAIN.name {
                    ranks::refuse_processes(&format!("`{}`", command.name))?;
                }
                Isa::from_environment().map_err(Failure::request)?;
                let (config_name, on_device, check, run) = match command.work {
                    Work::Composed {
                        config_name,
                        on_device,
                        check,
                        run,
                    } => (config_name, on_device, check, run),
                    Work::Plain(run) => return run(&args.overrides, &args.options),
                    Work::Recorded(run) => return run(&args.overrides, &self.plugins),
                };
                let composer = match &args.rerun {
                    Some(folder) => rerun::composer(folder)?,
                    None => configs::composer(&args, own, config_name)?,
                };
                if args.is_sweep() {
                    ranks::refuse_processes("a sweep")?;
                    return sweep::run(&composer, &args, &self.plugins);
                }
                let mut composition = composer.compose_checked(&args.overrides, |mut rest| {
                    if args.show.is_some() {
                        return Ok(()); // it shows what is no run yet
                    }
                    migration::apply(&mut rest, &self.plugins);
                    defaults::apply(&mut rest);
                    check(&Invocation {
                        composition: rest,
                        plugins: self.plugins.clone(),
                        composer: composer.clone(),
                        overrides: args.overrides.clone(),
                        arguments: args.raw.clone(),
                        options: args.options.clone(),
                    })
                })?;
                if let Some(folder) = &args.rerun {
                    rerun::prepare(&mut composition, folder, &args.overrides)?;
                }
                if on_device
                    && args.show.is_none()
                    && ranks::processes().is_none()
                    && let Some(device) = supervise::device_of_worker(&composition)
                {
                    // The other commands work on one.
                    let num_ranks = if command.name == TRAIN.name {
                        config::num_ranks(&composition, &device)?
                    } else {
                        1
                    };
                    return supervise::run(&device, num_ranks, &args.raw);
                }
                for warning in composition.warnings() {
                    out::error_line(format_args!("warning: {warning}"));
                }
                match args.show {
                    Some(show) => show::run(&composition, &self.plugins, show, &args),
                    None => {
                        for note in migration::apply(&mut composition, &self.plugins) {
                            out::error_line(format_args!("note: {note}"));
                        }
                        defaults::apply(&mut composition);
                        run(Invocation {
                            plugins: self.plugins,
                            composition,
                            composer,
                            overrides: args.overrides,
                            arguments: args.raw,
                            options: args.options,
                        })
                    }
                }
            }
        }
    }
}
