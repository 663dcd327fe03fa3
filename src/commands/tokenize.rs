//! `tpu-train tokenize`: makes the tokens of the training data that a run with `data.token_cache` takes, ahead of it. Needs no
//! model. Killed, it goes on where it was; two at once make the same. `--prune` removes caches that nobody uses instead.

use std::process::ExitCode;
use std::time::Duration;

use tt_data::{PrunedCache, TokenCacheConfig, cache_folder, prune_token_caches};
use tt_report::number::bytes;

use super::batch;
use crate::config::AppConfig;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::setup::{data_problem, tokens};

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    if let Some(days) = invocation.options.prune_days {
        return prune(&invocation, days);
    }
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

fn prune(invocation: &Invocation, days: u64) -> Result<ExitCode, Failure> {
    let composition = &invocation.composition;
    let config: AppConfig = composition.extract("")?;
    let (user, switch) = (cache_folder(), TokenCacheConfig::Switch(true));
    let root = match config.data.token_cache.root(user.as_deref()) {
        Ok(None) => switch.root(user.as_deref()),
        root => root,
    };
    let root = root.map_err(|error| data_problem(composition, &error))?;
    let root = root.unwrap_or_default();
    let age = Duration::from_secs(days.saturating_mul(24 * 60 * 60));
    let pruned = prune_token_caches(&root, age).map_err(Failure::run)?;
    for PrunedCache {
        folder,
        bytes: freed,
    } in &pruned
    {
        out::line(format!("removed {}, {}", folder.display(), bytes(*freed)));
    }
    let freed = pruned.iter().map(|it| it.bytes).sum();
    out::line(format!(
        "{} token caches removed from {}, {} in all",
        pruned.len(),
        root.display(),
        bytes(freed)
    ));
    Ok(ExitCode::SUCCESS)
}
