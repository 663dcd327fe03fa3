//! `tpu-train tokenize`: makes the tokens of the training data that a run with `data.token_cache` takes, ahead of it. Needs no
//! model. Killed, it goes on where it was; two at once make the same.

use std::process::ExitCode;

use tt_data::TokenCacheConfig;

use super::batch;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::{data_problem, tokens};

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    batch::check(&invocation)?;
    let mut is_off = false;
    let mut data = batch::open(&invocation, |config| {
        is_off = config.token_cache == TokenCacheConfig::Switch(false);
        if is_off {
            config.token_cache = TokenCacheConfig::Switch(true);
        }
    })?;
    let filled = tokens::fill(&mut data);
    let filled = filled.map_err(|error| data_problem(&invocation.composition, &error))?;
    if let Some(tokenized) = filled {
        out::line(tokens::describe(&tokenized));
    }
    if is_off {
        out::line("runs take it with data.token_cache=true");
    }
    Ok(ExitCode::SUCCESS)
}
