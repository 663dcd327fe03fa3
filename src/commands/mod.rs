//! The subcommands, one file each.

mod batch;
pub(crate) mod bench;
pub(crate) mod diff;
mod doctor;
mod embed;
mod eval;
mod export;
mod generate;
mod inspect;
mod plan;
mod report;
mod runs;
pub(crate) mod show;
mod sync;
mod table;
mod tokenize;
pub(crate) mod train;
mod upload;

pub(crate) use table::{
    BATCH, BENCH, Command, DIFF, DOCTOR, EMBED, EVAL, EXPORT, GENERATE, PLAN, REPORT, ROOT_CONFIG,
    RUNS, TABLE, TOKENIZE, TRAIN, Work,
};
