//! `bench generate`: reading a prompt of random tokens, and continuing it token by token; one text at a time, in f32, as
//! `generate` and the samples of a run do it.

use std::time::{Duration, Instant};

use tt_config::{Composition, Diagnostics};
use tt_engine::{Limits, Sampler, Sampling, generate_while};
use tt_tensor::{Device, Seed};

use super::config::BenchConfig;
use super::job::Job;
use super::report::{Report, ms};
use super::samples::{median, samples};
use crate::failure::Failure;
use crate::setup::{Setup, problem};

/// A text that was made.
struct Text {
    /// Until the first new token.
    prefill: Duration,
    /// Until the last, after that.
    decode: Duration,
}

pub(super) fn measure(
    setup: Setup,
    composition: &Composition,
    device: Device,
    config: &BenchConfig,
) -> Result<Report, Failure> {
    let BenchConfig {
        prompt_tokens,
        new_tokens,
        ..
    } = *config;
    let (vocab_size, longest) = (setup.model.vocab_size(), setup.model.max_positions());
    if prompt_tokens + new_tokens > longest {
        let why = format!(
            "`bench.prompt_tokens` and `bench.new_tokens` are {} together, more than the model's max_position_embeddings {longest}",
            prompt_tokens + new_tokens
        );
        let problem = problem(composition, "bench.new_tokens", why);
        return Err(Diagnostics::from(problem).into());
    }
    let job = Job::new(setup, composition, device)?;
    let (model, params) = (&*job.training.model, &job.training.params);
    let seed = Seed::new(0).fold_str("bench");
    let token = |at: usize| (seed.fold(at as u64).unit() * vocab_size as f64) as u32;
    let prompt: Vec<u32> = (0..prompt_tokens).map(token).collect();
    let limits = Limits {
        max_new_tokens: new_tokens,
        ends: Vec::new(),
    };
    let made = samples(config, || {
        let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
        let begun = Instant::now();
        let mut prefill = None;
        generate_while(model, params, &prompt, &mut sampler, &limits, |_| {
            prefill.get_or_insert_with(|| begun.elapsed());
            true
        })
        .map_err(|error| match error {
            tt_engine::Error::NotFinite { .. } => Failure::run(error),
            error => Failure::request(error),
        })?;
        let prefill = prefill.unwrap_or_default();
        let decode = begun.elapsed().saturating_sub(prefill);
        Ok(Some(Text { prefill, decode }))
    })?;
    let count = made.len();
    let times = made.iter().map(|text| (text.prefill, text.decode));
    let (prefills, decodes): (Vec<_>, Vec<_>) = times.unzip();
    let middle = |times: Vec<Duration>| median(times, |&it| it).unwrap_or_default();
    let (prefill, decode) = (middle(prefills), middle(decodes));
    let prefill_speed = prompt_tokens as f64 / prefill.as_secs_f64();
    // The first new token is what the prompt was read for.
    let decode_speed = (new_tokens - 1) as f64 / decode.as_secs_f64();

    let mut report = Report::default();
    report.fact("prefill_tokens_per_second", prefill_speed);
    report.fact("prefill_ms", ms(prefill));
    report.fact("decode_tokens_per_second", decode_speed);
    report.fact("decode_ms_per_token", ms(decode) / (new_tokens - 1) as f64);
    report.fact("texts", count);
    report.row(
        "prefill",
        format!("{prefill_speed:.0}"),
        format!("tokens/s, of {prompt_tokens}; median of {count}"),
    );
    report.row(
        "decode",
        format!("{decode_speed:.1}"),
        format!("tokens/s, of {new_tokens}"),
    );
    Ok(report)
}
