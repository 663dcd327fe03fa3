//! One of the two runs that are compared: the configuration of the command line, and what `--a` or `--b` changes in it.

use std::sync::Arc;
use std::time::Duration;

use tt_collators::{Batch, Pipeline};
use tt_config::{Composition, Diagnostics};
use tt_dist::Communicator;
use tt_nn::ParamSpec;
use tt_tensor::Precision;
use tt_train::compare::{Observed, Observer};
use tt_train::{Prepared, StopFlag};

use super::comparison_report::Shown;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::ranks::{self, Others};
use crate::setup::Setup;
use crate::setup::job;

pub(super) struct Variant {
    name: char,
    overrides: Vec<String>,
    pub(super) composition: Composition,
    pub(super) setup: Setup,
    /// What the ranks after the first are made of.
    followers: Vec<(Composition, Setup)>,
}

impl Variant {
    pub(super) fn read(
        name: char,
        invocation: &Invocation,
        overrides: &[String],
    ) -> Result<Self, Failure> {
        let read = || -> Result<_, Diagnostics> {
            let invocation = invocation.with(overrides)?;
            let setup = Setup::read(&invocation)?;
            setup.check(&invocation.composition)?;
            Ok((invocation.composition, setup))
        };
        let named = |problems: Diagnostics| {
            let mut all = Diagnostics::new();
            for problem in problems.iter() {
                all.push(problem.clone().note(format!("in variant {name}")));
            }
            all
        };
        let (composition, setup) = read().map_err(named)?;
        let followers = (1..setup.config.num_ranks()).map(|_| read());
        Ok(Self {
            name,
            overrides: overrides.to_vec(),
            followers: followers.collect::<Result<_, _>>().map_err(named)?,
            composition,
            setup,
        })
    }

    pub(super) fn num_ranks(&self) -> usize {
        1 + self.followers.len()
    }

    /// Makes micro-batches of so many rows; `None`: as configured.
    pub(super) fn use_rows(&mut self, rows: Option<usize>) {
        let followers = self.followers.iter_mut().map(|(_, setup)| setup);
        for setup in followers.chain([&mut self.setup]) {
            let size = &mut setup.trainer_config.micro_batch_size;
            *size = rows.unwrap_or(*size);
        }
    }

    /// Of the model, and of the adapter if there is one.
    pub(super) fn parameters(&self) -> Vec<ParamSpec> {
        let mut specs = self.setup.model.params();
        if let Some(adapter) = &self.setup.adapter {
            specs.extend(adapter.lora.params());
        }
        specs
    }

    pub(super) fn precision(&self) -> Precision {
        self.setup.config.precision.into()
    }

    /// The data, and its first `count` micro-batches. Error: there are not as many.
    pub(super) fn open_data(&self, count: usize) -> Result<(Pipeline, Vec<Batch>), Failure> {
        let data = self.setup.open_data(&self.composition, None)?;
        let mut loader = data.train(None).map_err(Failure::run)?;
        let batches = std::iter::from_fn(|| loader.next_batch().transpose());
        let batches: Result<Vec<_>, _> = batches.take(count).collect();
        let batches = batches.map_err(Failure::run)?;
        drop(loader);
        match batches.len() {
            0 => Err(Failure::run(tt_train::Error::NoData)),
            found if found < count => {
                let why =
                    format!("the data has {found} micro-batches, and there are {count} ranks");
                Err(tt_train::Error::Variants(why).into())
            }
            _ => Ok((data, batches)),
        }
    }

    /// Makes the step of `observer` on all ranks, as it would be trained; gives what the first has to say of it.
    pub(super) fn run(self, data: Pipeline, observer: &Observer) -> Result<Observed, Failure> {
        let Self {
            composition,
            setup,
            followers,
            ..
        } = self;
        let timeout = setup.config.dist.timeout_seconds.map(Duration::from_secs);
        let follow = |(composition, setup): (Composition, Setup), world| {
            let data = setup.open_data(&composition, None)?;
            observer.observe(prepare(setup, &composition, data, Some(world))?)?;
            Ok(())
        };
        ranks::run(Others::Threads(followers), timeout, follow, |world| {
            Ok(observer.observe(prepare(setup, &composition, data, world)?)?)
        })
    }

    pub(super) fn shown(&self) -> Shown {
        Shown {
            name: self.name,
            overrides: self.overrides.clone(),
            ranks: self.num_ranks(),
        }
    }
}

/// The run as a rank would train it, before its first step.
fn prepare(
    mut setup: Setup,
    composition: &Composition,
    data: Pipeline,
    world: Option<Arc<dyn Communicator>>,
) -> Result<Prepared, Failure> {
    // The length of a run changes rates alone, and counting it may take reading all of the data.
    let run_length = Some(setup.trainer_config.max_steps.unwrap_or(1000));
    let stop = StopFlag::default();
    // Nothing is timed, so nothing is measured to compare times with.
    setup.config.device.peak_tflops = None;
    let job = job::assemble(setup, composition, data, None, run_length, stop, world)?;
    job.prepare().map_err(Failure::from)
}

/// The rows of a micro-batch for both. Several ranks have smaller ones where that shares them out evenly, which is no
/// difference of what they compute.
pub(super) fn rows_for_both(a: &Variant, b: &Variant) -> usize {
    let rows = |it: &Variant| it.setup.trainer_config.micro_batch_size;
    let (mut divisor, mut rest) = (rows(a), rows(b));
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    divisor
}

/// The overrides in one value of `--a` or `--b`: several are separated by blanks, outside quotes and brackets. What is no
/// override of its own belongs to the one before, so that `notes=two words` needs no more quotes than elsewhere.
pub(crate) fn split(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (blank, word) in words(text) {
        let is_override = word.contains('=') || word.starts_with('~');
        match found.last_mut() {
            Some(last) if !is_override => last.extend([blank, word]),
            _ => found.push(word.to_owned()),
        }
    }
    found
}

/// Words with the blanks before them.
fn words(text: &str) -> Vec<(&str, &str)> {
    let (mut quote, mut depth, mut is_escaped) = (None, 0usize, false);
    let (mut words, mut blank, mut start) = (Vec::new(), 0, None);
    for (i, c) in text.char_indices() {
        let is_inside = is_escaped || quote.is_some() || depth > 0;
        if c.is_whitespace() && !is_inside {
            if let Some(start) = start.take() {
                words.push((&text[blank..start], &text[start..i]));
                blank = i;
            }
            continue;
        }
        start.get_or_insert(i);
        match c {
            _ if is_escaped => {
                is_escaped = false;
                continue;
            }
            '\\' => is_escaped = true,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            c if quote == Some(c) => quote = None,
            '[' | '{' | '(' if quote.is_none() => depth += 1,
            ']' | '}' | ')' if quote.is_none() => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if let Some(start) = start {
        words.push((&text[blank..start], &text[start..]));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn blanks_separate_overrides_outside_quotes_and_brackets() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("precision=bf16", &["precision=bf16"]),
            (
                " device=cpu  +model/remat=full ~name ",
                &["device=cpu", "+model/remat=full", "~name"],
            ),
            ("betas=[0.9, 0.99] lr=1", &["betas=[0.9, 0.99]", "lr=1"]),
            ("a={b: 1, c: d} e=f", &["a={b: 1, c: d}", "e=f"]),
            ("notes='a b=c' lr=1", &["notes='a b=c'", "lr=1"]),
            (r#"notes="it's [" lr=1"#, &[r#"notes="it's [""#, "lr=1"]),
            ("notes=two  words lr=1", &["notes=two  words", "lr=1"]),
            (r"notes=a\ b=c lr=1", &[r"notes=a\ b=c", "lr=1"]),
            ("nothing", &["nothing"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text), *expected, "{text}");
        }
    }
}
