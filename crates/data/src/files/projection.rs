//! Which columns of a file are read.

use std::path::Path;

use arrow_schema::{DataType, Fields as Schema};

use crate::error::DataError;
use crate::value::{Fields, Unread};

/// Which columns are read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Columns {
    /// All.
    All,
    /// These, each of which has to be there.
    Named(Vec<String>),
    /// What a collator asks for, as far as it is there: a column, or a path within one such as `meta.text`.
    Used(Vec<String>),
}

/// The columns of a file that are read.
pub(super) struct Projection {
    /// Their places; `None` for all.
    pub(super) places: Option<Vec<usize>>,
    /// The others, of which nobody has said that they are not to be read.
    pub(super) unread: Vec<Unread>,
}

impl Columns {
    /// What the configuration names goes before what a collator asks for.
    pub(super) fn new(named: Option<&Vec<String>>, used: Option<&Vec<String>>) -> Self {
        match (named, used) {
            (Some(named), _) => Self::Named(named.clone()),
            (None, Some(used)) => Self::Used(used.clone()),
            (None, None) => Self::All,
        }
    }

    fn wants(&self, name: &str) -> bool {
        let is_in = |path: &String| {
            let rest = path.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|it| it == name),
            Self::Used(paths) => paths.iter().any(is_in),
        }
    }

    /// Those wanted of a row that has been read whole.
    pub(super) fn of_row(&self, fields: Fields) -> Fields {
        match self {
            Self::All => fields,
            Self::Named(_) => fields.only(|name| self.wants(name)).without_unread(),
            Self::Used(_) => fields.only(|name| self.wants(name)),
        }
    }

    /// Those wanted of a file with the columns of `schema`. Errors: one that is named and not there.
    pub(super) fn of_file(&self, schema: &Schema, path: &Path) -> Result<Projection, DataError> {
        let names = || schema.iter().map(|field| field.name());
        if let Self::Named(named) = self
            && let Some(missing) = named.iter().find(|it| schema.find(it).is_none())
        {
            let known: Vec<&str> = names().map(String::as_str).collect();
            let message = format!("no column `{missing}`; it has {}", known.join(", "));
            return Err(DataError::file(path, message));
        }
        let wanted = names().enumerate().filter(|(_, name)| self.wants(name));
        let places: Vec<usize> = wanted.map(|(place, _)| place).collect();
        let unread = match self {
            Self::Used(_) => {
                let others = schema.iter().filter(|field| !self.wants(field.name()));
                let unread = others.map(|field| Unread {
                    name: field.name().clone(),
                    is_text: is_text(field.data_type()),
                });
                unread.collect()
            }
            _ => Vec::new(),
        };
        // Where nothing is there that is asked for, a row is to say what is.
        let is_all = places.len() == schema.len() || places.is_empty() && self.is_used();
        Ok(if is_all {
            Projection {
                places: None,
                unread: Vec::new(),
            }
        } else {
            Projection {
                places: Some(places),
                unread,
            }
        })
    }

    fn is_used(&self) -> bool {
        matches!(self, Self::Used(_))
    }
}

fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}
