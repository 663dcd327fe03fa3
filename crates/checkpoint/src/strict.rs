//! Strict matching of a file's tensors with a model's: all differences in one error.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
};

/// Lines shown for each kind of difference.
const MAX_LINES: usize = 20;
/// Below this two names have nothing to do with each other.
const MIN_SIMILARITY: f64 = 0.7;

/// Differences that are no error. `*` in a pattern stands for any characters, dots included:
/// `*.rotary_emb.inv_freq`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allow<'a> {
    /// Tensors of the model that the file may lack.
    pub missing: &'a [&'a str],
    /// Tensors of the file that the model need not know.
    pub unexpected: &'a [&'a str],
}

impl Allow<'_> {
    /// What transformers passes over as well: buffers that old checkpoints hold, and models compute.
    pub const BUFFERS: Allow<'static> = Allow {
        missing: &[],
        unexpected: &["*.rotary_emb.inv_freq"],
    };
}

/// Every difference between the tensors of a file and those of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct StrictError {
    /// The file or folder of the weights.
    pub path: PathBuf,
    /// In the model, not in the file: name, shape, and the file's nearest name.
    pub missing: Vec<(String, Vec<usize>, Option<String>)>,
    /// In the file, not in the model: name and shape.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// In both: name, the model's shape, the file's.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
}

pub(crate) fn check<'a, 'b>(
    path: &Path,
    expected: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    actual: impl IntoIterator<Item = (&'b str, &'b [usize])>,
    allow: &Allow<'_>,
) -> Result<(), StrictError> {
    let actual: Vec<_> = actual.into_iter().collect();
    let mut left: HashMap<&str, &[usize]> = actual.iter().copied().collect();
    let mut missing = Vec::new();
    let mut misshapen = Vec::new();
    for (name, shape) in expected {
        match left.remove(name) {
            Some(found) if found == shape => {}
            Some(found) => misshapen.push((name.to_owned(), shape.to_vec(), found.to_vec())),
            None if matches_any(allow.missing, name) => {}
            None => missing.push((name.to_owned(), shape.to_vec(), None)),
        }
    }
    let unexpected: Vec<_> = actual
        .into_iter()
        .filter(|(name, _)| left.contains_key(name) && !matches_any(allow.unexpected, name))
        .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
        .collect();
    if missing.is_empty() && unexpected.is_empty() && misshapen.is_empty() {
        return Ok(());
    }
    // Only for the lines that are shown: comparing every pair of names takes seconds.
    for (name, shape, near) in missing.iter_mut().take(MAX_LINES) {
        let same_shape = unexpected.iter().filter(|(_, s)| s == shape);
        *near = nearest(name, same_shape.map(|(n, _)| n.as_str())).map(str::to_owned);
    }
    Err(StrictError {
        path: path.to_owned(),
        missing,
        unexpected,
        misshapen,
    })
}

/// The name most like `name`. One that differs only by a prefix beats any spelling.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let score = |candidate: &str| {
        let is_suffix = |long: &str, short: &str| {
            long.strip_suffix(short)
                .is_some_and(|head| head.ends_with('.'))
        };
        if is_suffix(candidate, name) || is_suffix(name, candidate) {
            2.0
        } else {
            strsim::normalized_levenshtein(candidate, name)
        }
    };
    candidates
        .into_iter()
        .map(|candidate| (score(candidate), candidate))
        .filter(|(score, _)| *score >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

fn matches_any(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

/// Whether a name is one that the pattern stands for: `*` is any characters, dots included.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    (0..=name.len())
        .filter(|&i| name.is_char_boundary(i))
        .any(|i| matches(rest, &name[i..]))
}

impl fmt::Display for StrictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.missing.len(), "missing"),
            (self.unexpected.len(), "unexpected"),
            (self.misshapen.len(), "misshapen"),
        ];
        let counts: Vec<_> = kinds
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, kind)| format!("{n} {kind}"))
            .collect();
        write!(
            f,
            "the weights in {} do not fit the model: {}",
            self.path.display(),
            counts.join(", ")
        )?;
        section(
            f,
            "missing from the file",
            &self.missing,
            |(name, shape, near)| {
                let hint = near.as_ref().map(|n| format!("  (the file has `{n}`)"));
                format!("{name} {shape:?}{}", hint.unwrap_or_default())
            },
        )?;
        section(f, "not in the model", &self.unexpected, |(name, shape)| {
            format!("{name} {shape:?}")
        })?;
        section(
            f,
            "of another shape",
            &self.misshapen,
            |(name, model, file)| format!("{name} model {model:?}, file {file:?}"),
        )
    }
}

fn section<T>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    items: &[T],
    line: impl Fn(&T) -> String,
) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {title}:")?;
    // Cutting one line off would only replace it by another.
    let shown = if items.len() == MAX_LINES + 1 {
        items.len()
    } else {
        MAX_LINES
    };
    for item in items.iter().take(shown) {
        write!(f, "\n    {}", line(item))?;
    }
    if items.len() > shown {
        write!(f, "\n    ... and {} more", items.len() - shown)?;
    }
    Ok(())
}
