//! `bench loader`: the batches of the configured data with nobody consuming them, as configured and with no worker of the
//! collator's. Needs no model.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::json;

use super::config::BenchConfig;
use super::report::Report;
use crate::commands::batch;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::setup::{data_problem, tokens};

/// What was loaded.
struct Loaded {
    batches: u64,
    /// Those that are no padding.
    tokens: u64,
    time: Duration,
    /// The data ended first.
    is_over: bool,
}

impl Loaded {
    fn batches_per_second(&self) -> f64 {
        self.batches as f64 / self.time.as_secs_f64()
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64()
    }
}

pub(super) fn measure(
    invocation: &Invocation,
    num_workers: usize,
    config: &BenchConfig,
) -> Result<Report, Failure> {
    let configured = load(invocation, num_workers, config)?;
    let alone = match num_workers {
        0 => None,
        _ => Some(load(invocation, 0, config)?),
    };
    let mut report = Report::default();
    report.fact("tokens_per_second", configured.tokens_per_second());
    report.fact("batches_per_second", configured.batches_per_second());
    report.fact("workers", num_workers);
    report.fact("batches", configured.batches);
    report.fact("tokens", configured.tokens);
    report.fact("seconds", configured.time.as_secs_f64());
    let without = alone.as_ref().unwrap_or(&configured);
    report.fact(
        "without_workers",
        json!({
            "tokens_per_second": without.tokens_per_second(),
            "batches_per_second": without.batches_per_second(),
        }),
    );
    let mut rows = |name: &str, loaded: &Loaded| {
        let end = if loaded.is_over {
            ", all that there are"
        } else {
            ""
        };
        let batches = format!("of {} batches{end}", loaded.batches);
        report.row(name, "", "");
        report.row(
            "  tokens/s",
            format!("{:.0}", loaded.tokens_per_second()),
            batches,
        );
        report.row(
            "  batches/s",
            format!("{:.1}", loaded.batches_per_second()),
            "",
        );
    };
    let name = match num_workers {
        1 => "1 worker".to_owned(),
        others => format!("{others} workers"),
    };
    rows(&name, &configured);
    if let Some(alone) = &alone {
        rows("0 workers", alone);
    }
    Ok(report)
}

fn load(
    invocation: &Invocation,
    num_workers: usize,
    config: &BenchConfig,
) -> Result<Loaded, Failure> {
    let mut data = batch::open(invocation, |data| data.num_workers = num_workers)?;
    tokens::fill(&mut data).map_err(|error| data_problem(&invocation.composition, &error))?;
    let mut loader = data.train(None).map_err(Failure::run)?;
    let mut loaded = Loaded {
        batches: 0,
        tokens: 0,
        time: Duration::ZERO,
        is_over: false,
    };
    for _ in 0..config.warmup {
        if let Some(batch) = loader.next_batch().map_err(Failure::run)? {
            loader.recycle(batch);
        }
    }
    let begun = Instant::now();
    let most = config.steps.unwrap_or(u64::MAX);
    while loaded.batches < most && begun.elapsed().as_secs_f64() < config.seconds {
        let Some(batch) = loader.next_batch().map_err(Failure::run)? else {
            loaded.is_over = true;
            break;
        };
        loaded.batches += 1;
        let tokens = batch.segment_ids.iter().filter(|&&segment| segment != 0);
        loaded.tokens += tokens.count() as u64;
        loader.recycle(batch);
    }
    loaded.time = begun.elapsed();
    if loaded.batches == 0 {
        let why = format!(
            "the data ends with the {} batches of bench.warmup, or bench.seconds={} has room for none",
            config.warmup, config.seconds
        );
        return Err(Failure::Request(anyhow!(why)));
    }
    Ok(loaded)
}
