//! Sweeps: one command line that stands for many jobs, expanded as Hydra's basic sweeper does.
//!
//! The jobs are the product of all sweeps, the last one fastest. Every job is composed before any
//! is handed out, so that a bad option is found before the first job runs.

use indexmap::IndexMap;

use crate::compose::{Composer, parse_arguments};
use crate::composition::Composition;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::grammar::{self, Element, Override, write};
use crate::origin::{Origin, Span};
use crate::repository::Repository;
use crate::value::Node;

/// Most jobs of one sweep.
const MOST_JOBS: usize = 100_000;

/// One job of a sweep.
pub struct ComposedJob {
    /// The task's overrides, each with one value.
    pub overrides: Vec<String>,
    /// What its overrides compose.
    pub composition: Composition,
}

impl Composer {
    /// Expands a sweep and composes every job. Settings of Hydra (`hydra.run.dir=...`) hold for
    /// all jobs and cannot be swept.
    pub fn sweep<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Vec<ComposedJob>, Diagnostics> {
        let overrides = parse_arguments(arguments)?;
        let shared = self.compose_shared(overrides.clone())?;
        let (hydra, task): (Vec<Override>, Vec<Override>) =
            overrides.into_iter().partition(Override::is_hydra);
        if let Some(swept) = hydra.iter().find(|given| given.sweep().is_some()) {
            return Err(Diagnostic::new(format!(
                "Hydra's own settings cannot be swept: '{}'",
                swept.text
            ))
            .at(&swept.key_origin())
            .into());
        }
        let mut all = parameters(&shared)?;
        all.extend(task);
        let sweeps = expand(&all, &shared.repository)?;
        let count = sweeps
            .values()
            .try_fold(1usize, |count, values| count.checked_mul(values.len()))
            .filter(|count| *count <= MOST_JOBS);
        let Some(count) = count else {
            return Err(Diagnostic::new(format!("a sweep of more than {MOST_JOBS} jobs")).into());
        };

        let mut jobs = Vec::with_capacity(count);
        let mut problems = Diagnostics::new();
        for index in 0..count {
            let overrides = nth(&sweeps, index);
            let arguments: Vec<&str> = hydra
                .iter()
                .map(|given| &*given.text)
                .chain(overrides.iter().map(String::as_str))
                .collect();
            match self.compose(&arguments) {
                Ok(composition) => jobs.push(ComposedJob {
                    overrides,
                    composition,
                }),
                Err(found) => problems.extend_new(found),
            }
        }
        problems.into_result(jobs)
    }
}

/// `hydra.sweeper.params`: sweeps that the configuration holds.
fn parameters(shared: &Composition) -> Result<Vec<Override>, Diagnostics> {
    let params = shared.get("hydra.sweeper.params").and_then(Node::as_map);
    let texts: Vec<String> = params
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", crate::python::display(value)))
        .collect();
    grammar::parse_all(&texts)
}

/// The arguments that each override stands for. A key given twice keeps its place and takes the
/// later value.
fn expand(
    overrides: &[Override],
    repository: &Repository,
) -> Result<IndexMap<String, Vec<String>>, Diagnostics> {
    let mut problems = Diagnostics::new();
    let mut sweeps = IndexMap::new();
    for given in overrides {
        let key = given.left_side();
        let argument = |value: &Element| format!("{key}={}", write::element(value));
        let arguments = match (given.sweep(), &given.value) {
            (Some(sweep), value) => {
                let span = value.as_ref().map_or(Span::default(), |value| value.span);
                let values = sweep.values(span, || repository.options(&given.key));
                let values = values.and_then(|values| match values.len() {
                    0 => Err("there is nothing to sweep over".to_string()),
                    _ => Ok(values),
                });
                match values {
                    Ok(values) => values.iter().map(argument).collect(),
                    Err(message) => {
                        problems.push(
                            Diagnostic::new(format!("cannot sweep '{}'", given.text))
                                .at(&Origin::argument(&given.text, span))
                                .label(message),
                        );
                        continue;
                    }
                }
            }
            (None, Some(value)) => vec![argument(value)],
            (None, None) => vec![key.clone()],
        };
        sweeps.insert(key, arguments);
    }
    problems.into_result(sweeps)
}

/// The overrides of one job: `index` written in a number system with one digit for each sweep.
fn nth(sweeps: &IndexMap<String, Vec<String>>, mut index: usize) -> Vec<String> {
    let mut overrides: Vec<String> = sweeps
        .values()
        .rev()
        .map(|values| {
            let value = values[index % values.len()].clone();
            index /= values.len();
            value
        })
        .collect();
    overrides.reverse();
    overrides
}
