//! Hydra's override grammar: `key=value`, `+key=value`, `++key=value`, `~key`, `group@package=x`.
//!
//! A value is a quoted text, a primitive, a list, a dict, or a function call; several values
//! joined by commas, and the functions `choice`, `range` and `glob`, make a sweep.
//!
//! Errors carry the argument with a caret. Nesting is limited to [`MAX_DEPTH`].

mod functions;
pub(crate) mod lexer;
mod parser;
mod primitive;
mod sweep;
pub(crate) mod write;

use std::sync::Arc;

pub(crate) use parser::{parse, parse_all};
pub(crate) use sweep::Sweep;

use crate::origin::{Origin, Span};
use crate::value::{Key, Map, Node, Value};

pub(crate) const MAX_DEPTH: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `key=value`
    Change,
    /// `+key=value`
    Add,
    /// `++key=value`
    ForceAdd,
    /// `~key`, `~key=value`
    Delete,
}

impl Operation {
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Operation::Change => "",
            Operation::Add => "+",
            Operation::ForceAdd => "++",
            Operation::Delete => "~",
        }
    }
}

/// A value as it was written, or as a function made it.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub content: Content,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// A bare text, with its escapes undone.
    Text(String),
    /// A quoted text, without its quotes.
    Quoted(String),
    List(Vec<Element>),
    Dict(Vec<(Key, Span, Element)>),
    Sweep(Sweep),
}

/// One parsed argument.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    pub operation: Operation,
    /// A dotted key, or a group path with slashes.
    pub key: String,
    pub key_span: Span,
    /// After `@`.
    pub package: Option<String>,
    /// `None` only for `~key`.
    pub value: Option<Element>,
    /// The argument as the user wrote it.
    pub text: Arc<str>,
}

impl Override {
    /// `group@package`, or the key.
    pub(crate) fn key_and_package(&self) -> String {
        match &self.package {
            Some(package) => format!("{}@{package}", self.key),
            None => self.key.clone(),
        }
    }

    /// The part in front of `=`.
    pub(crate) fn left_side(&self) -> String {
        format!("{}{}", self.operation.prefix(), self.key_and_package())
    }

    pub(crate) fn sweep(&self) -> Option<&Sweep> {
        match &self.value.as_ref()?.content {
            Content::Sweep(sweep) => Some(sweep),
            _ => None,
        }
    }

    /// Whether it is about Hydra's own settings.
    pub(crate) fn is_hydra(&self) -> bool {
        self.key.starts_with("hydra.") || self.key.starts_with("hydra/")
    }

    /// The origin of the whole argument, with the caret under its key.
    pub(crate) fn key_origin(&self) -> Origin {
        Origin::argument(&self.text, self.key_span)
    }

    /// The value as a node; `None` for `~key` and for sweeps.
    pub(crate) fn node(&self) -> Option<Node> {
        let mut node = element_node(self.value.as_ref()?, &self.text)?;
        node.origin.key = Some(self.key_span);
        Some(node)
    }
}

pub(crate) fn element_node(element: &Element, text: &Arc<str>) -> Option<Node> {
    let value = match &element.content {
        Content::Null => Value::Null,
        Content::Bool(value) => Value::Bool(*value),
        Content::Int(value) => Value::Int(*value),
        Content::Float(value) => Value::Float(*value),
        Content::Text(text) | Content::Quoted(text) => Value::Str(text.clone()),
        Content::List(items) => Value::List(
            items
                .iter()
                .map(|item| element_node(item, text))
                .collect::<Option<_>>()?,
        ),
        Content::Dict(pairs) => {
            let mut map = Map::new();
            for (key, key_span, item) in pairs {
                let mut node = element_node(item, text)?;
                node.origin.key = Some(*key_span);
                map.insert(key.clone(), node);
            }
            Value::Map(map)
        }
        Content::Sweep(_) => return None,
    };
    Some(Node::new(value, Origin::argument(text, element.span)))
}
