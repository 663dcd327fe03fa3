//! The subcommands, one file each.

mod batch;
pub(crate) mod diff;
mod doctor;
mod export;
mod generate;
mod inspect;
mod plan;
mod runs;
pub(crate) mod show;
mod table;
mod tokenize;
mod train;
mod upload;

pub(crate) use table::{
    BATCH, Command, DIFF, DOCTOR, EXPORT, GENERATE, PLAN, ROOT_CONFIG, RUNS, TABLE, TRAIN, Work,
};
