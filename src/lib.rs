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

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod app;
mod args;
mod cli;
mod commands;
mod completion;
mod config;
mod configs;
mod defaults;
mod device;
mod failure;
mod hydra_help;
mod invocation;
mod migration;
mod out;
mod plugins;
mod publish;
mod ranks;
#[doc(hidden)]
pub mod reference;
mod report;
mod rerun;
mod setup;
mod shell;
mod supervise;
mod sweep;

/// The examples of `docs/checkpoints.md`, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/checkpoints.md")]
struct _Checkpoints;

pub use app::App;
pub use tt_config::Entry;
pub use {
    tt_checkpoint as checkpoint, tt_collators as collators, tt_data as data, tt_metrics as metrics,
    tt_models as models, tt_nn as nn, tt_optimizers as optimizers, tt_tensor as tensor,
    tt_tpu as tpu, tt_train as train, tt_trainers as trainers,
};
