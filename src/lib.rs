//! The binary `tpu-train`, as a library: argv in, exit code out.
//!
//! A program of your own registers what it adds and runs the same command line:
//!
//! ```
//! use tpu_train::App;
//!
//! # fn with_my_trainer(app: App) -> App { app }
//! let app = with_my_trainer(App::new());
//! let exit_code = app.run(["--version".into()]);
//! # assert_eq!(format!("{exit_code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
//! ```
//!
//! What plug-ins are made of is re-exported, so that such a program depends on this crate alone; `examples/` has two.

mod adapter;
mod app;
mod cli;
mod commands;
mod completion;
mod config;
mod configs;
mod device;
mod ending;
mod failure;
mod hydra_help;
mod job;
mod migration;
mod optimization;
mod origins;
mod out;
mod parameters;
mod plugins;
mod pretrained;
mod program;
mod quote;
#[cfg(test)]
mod reference;
mod rerun;
mod resume;
mod run_dir;
mod setup;
mod signals;
mod stored;
mod supervise;
mod sweep;

/// The examples of `docs/checkpoints.md`, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/checkpoints.md")]
struct _Checkpoints;

pub use app::App;
pub use tt_config::Entry;
pub use {
    tt_checkpoint as checkpoint, tt_collators as collators, tt_data as data, tt_models as models,
    tt_nn as nn, tt_optimizers as optimizers, tt_tensor as tensor, tt_train as train,
    tt_trainers as trainers,
};
