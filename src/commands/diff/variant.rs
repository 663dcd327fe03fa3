//! One of the two runs that are compared: the configuration of the command line, and what `--a` or `--b` changes in it.

use tt_collators::{Batch, Pipeline};
use tt_config::{Composition, Diagnostics};
use tt_nn::ParamSpec;
use tt_tensor::Precision;
use tt_train::{Prepared, StopFlag};

use super::comparison_report::Shown;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::setup::Setup;
use crate::setup::job;

pub(super) struct Variant {
    name: char,
    overrides: Vec<String>,
    pub(super) composition: Composition,
    pub(super) setup: Setup,
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
            if setup.config.num_ranks() > 1 {
                let ranks = invocation.composition.section("device.ranks");
                let why = "steps are compared of one rank only, yet";
                return Err(ranks.error(why.to_owned()).into());
            }
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
        Ok(Self {
            name,
            overrides: overrides.to_vec(),
            composition,
            setup,
        })
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

    /// The data, and its first batch.
    pub(super) fn open_data(&self) -> Result<(Pipeline, Batch), Failure> {
        let data = self.setup.open_data(&self.composition, None)?;
        let batch = data.train(None).and_then(|mut loader| loader.next_batch());
        match batch.map_err(Failure::run)? {
            Some(batch) => Ok((data, batch)),
            None => Err(Failure::run(tt_train::Error::NoData)),
        }
    }

    /// The run as it would be trained, before its first step.
    pub(super) fn prepare(self, data: Pipeline) -> Result<Prepared, Failure> {
        // The length of a run changes rates alone, and counting it may take reading all of the data.
        let run_length = Some(self.setup.trainer_config.max_steps.unwrap_or(1000));
        let stop = StopFlag::default();
        let job = job::assemble(
            self.setup,
            &self.composition,
            data,
            None,
            run_length,
            stop,
            None,
        )?;
        job.prepare().map_err(Failure::from)
    }

    pub(super) fn shown(&self) -> Shown {
        Shown {
            name: self.name,
            overrides: self.overrides.clone(),
        }
    }
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
