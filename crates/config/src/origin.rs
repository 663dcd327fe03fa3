//! Where a value came from: file and position, command-line argument, environment or built-in.
//!
//! Every node of a tree carries an [`Origin`]. A file is loaded as a [`Layer`], which knows the
//! [`Choice`] that brought it in; following choices upwards gives the chain that is shown to the
//! user (`chosen by trainer: lm at configs/default.yaml:10`).

use std::fmt;
use std::sync::Arc;

/// A stretch of a source text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        let clamp = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span {
            start: clamp(start),
            end: clamp(end.max(start)),
        }
    }
}

/// A configuration file as it was read.
#[derive(Debug)]
pub struct SourceFile {
    /// The path as the user knows it, e.g. `configs/trainer/lm.yaml`.
    pub path: String,
    /// What is written there.
    pub text: String,
}

/// One use of a file in a composition. The same file may be used twice, under two choices.
#[derive(Debug)]
pub struct Layer {
    /// The file itself.
    pub file: Arc<SourceFile>,
    /// What brought the file in; `None` for the primary config.
    pub chosen_by: Option<Choice>,
}

/// An entry of a defaults list, or a command-line argument, that selects a file.
#[derive(Clone, Debug)]
pub struct Choice {
    /// As the user wrote it: `trainer: lm`, or `trainer=lm`.
    pub what: String,
    /// Where it was written.
    pub origin: Origin,
}

/// The kind of place a value was written at.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a config file.
    File(Arc<Layer>),
    /// A command-line argument, whole.
    Argument(Arc<str>),
    /// The environment variable of that name.
    Environment(Arc<str>),
    /// Set by the program.
    Default,
}

/// Where a value was written.
#[derive(Clone, Debug)]
pub struct Origin {
    /// What it was written in.
    pub place: Place,
    /// The key in front of the value, when there is one.
    pub key: Option<Span>,
    /// Where in that the value stands.
    pub value: Span,
    /// For a value that was read through an interpolation: where the interpolation stands.
    pub read_at: Option<Arc<Origin>>,
}

impl Origin {
    /// The origin of values set by the program itself.
    pub fn built_in() -> Self {
        Origin {
            place: Place::Default,
            key: None,
            value: Span::default(),
            read_at: None,
        }
    }

    pub(crate) fn file(layer: &Arc<Layer>, value: Span) -> Self {
        Origin {
            place: Place::File(layer.clone()),
            key: None,
            value,
            read_at: None,
        }
    }

    pub(crate) fn argument(text: &Arc<str>, value: Span) -> Self {
        Origin {
            place: Place::Argument(text.clone()),
            key: None,
            value,
            read_at: None,
        }
    }

    /// The origin whose value is the key itself: for messages about keys.
    pub(crate) fn at_key(&self) -> Self {
        let mut origin = self.clone();
        origin.value = self.key.unwrap_or(self.value);
        origin
    }

    /// The text that holds the value, if there is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.place {
            Place::File(layer) => Some(&layer.file.text),
            Place::Argument(text) => Some(text),
            Place::Environment(_) | Place::Default => None,
        }
    }

    /// Line and column of the value, both from 1, in characters.
    pub fn line_column(&self) -> Option<(usize, usize)> {
        let text = self.text()?;
        let start = floor_char_boundary(text, self.value.start as usize);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        Some((line, before[line_start..].chars().count() + 1))
    }

    /// The choice that brought the file in, if the place is a file that was chosen.
    pub fn chosen_by(&self) -> Option<&Choice> {
        match &self.place {
            Place::File(layer) => layer.chosen_by.as_ref(),
            _ => None,
        }
    }

    /// The chain of choices, nearest first, as one line each.
    pub fn choices(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut choice = self.chosen_by();
        while let Some(next) = choice {
            lines.push(format!("chosen by `{}` {}", next.what, next.origin.at()));
            choice = next.origin.chosen_by();
        }
        lines
    }

    /// The whole story on one line: the place, the interpolation it was read through, and the choices that brought
    /// the file in.
    pub fn explain(&self) -> String {
        let mut text = match &self.read_at {
            Some(site) => format!("{site} -> {self}"),
            None => self.to_string(),
        };
        let shown = self.read_at.as_deref().unwrap_or(self);
        for choice in shown.choices() {
            text.push_str(", ");
            text.push_str(&choice);
        }
        text
    }

    /// `at configs/x.yaml:4`, `on the command line`, ...: the place, as the end of a sentence.
    pub(crate) fn at(&self) -> String {
        match &self.place {
            Place::File(layer) => {
                let line = self.line_column().map_or(1, |(line, _)| line);
                format!("at {}:{line}", layer.file.path)
            }
            Place::Argument(_) => "on the command line".to_string(),
            Place::Environment(name) => format!("in the environment variable {name}"),
            Place::Default => "by default".to_string(),
        }
    }
}

impl fmt::Display for Origin {
    /// `configs/x.yaml:6:3`, `argument lr=5e-5`, `environment variable TEAM`, `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File(layer) => {
                let (line, column) = self.line_column().unwrap_or((1, 1));
                write!(f, "{}:{line}:{column}", layer.file.path)
            }
            Place::Argument(text) => write!(f, "argument {text}"),
            Place::Environment(name) => write!(f, "environment variable {name}"),
            Place::Default => f.write_str("default"),
        }
    }
}

/// The nearest character boundary at or before `at`.
pub(crate) fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
