//! The tree of a configuration: values with their origins.
//!
//! Types are those of YAML: null, boolean, integer, float, string, list, mapping. A mapping keeps
//! the order of its keys. A string `???` is a value still to be given; a string with `${` in it is
//! an interpolation, until it is resolved.

use std::fmt;
use std::hash::{Hash, Hasher};

use indexmap::{Equivalent, IndexMap};

use crate::origin::Origin;
use crate::python;

/// The text that marks a value still to be given.
pub const MISSING: &str = "???";

/// The type of a mapping key that is not text. Only text keys can be reached by a dotted path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A text.
    Text,
    /// A whole number.
    Integer,
    /// A number with a fraction.
    Float,
    /// `true` or `false`.
    Boolean,
}

/// A mapping key: its text, and the type YAML gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    text: String,
    kind: KeyKind,
}

impl Key {
    /// A key as it is written, and what that is read as.
    pub fn new(text: impl Into<String>, kind: KeyKind) -> Self {
        Key {
            text: text.into(),
            kind,
        }
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What it is read as.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key::new(text, KeyKind::Text)
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Key::new(text, KeyKind::Text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// Hashes as its text does, so that a `str` finds the text key without an allocation.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.as_str().hash(state);
    }
}

impl Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.kind == KeyKind::Text && key.text == self
    }
}

/// A mapping, in the order its keys were first given.
pub type Map = IndexMap<Key, Node>;

/// What a node holds.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction, infinite or NaN.
    Float(f64),
    /// A text.
    Str(String),
    /// Items in order.
    List(Vec<Node>),
    /// Values by key, in order.
    Map(Map),
}

/// A value and where it came from.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it holds.
    pub value: Value,
    /// Where it was written, or what made it.
    pub origin: Origin,
}

impl Node {
    /// A node of a value from a place.
    pub fn new(value: Value, origin: Origin) -> Self {
        Node { value, origin }
    }

    /// A value set by the program itself.
    pub fn built_in(value: Value) -> Self {
        Node::new(value, Origin::built_in())
    }

    /// The keys, if it is a mapping.
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Still to be given: `???`.
    pub fn is_missing(&self) -> bool {
        self.as_str() == Some(MISSING)
    }

    /// Whether it is a text with an interpolation, `${...}`.
    pub fn is_interpolation(&self) -> bool {
        self.as_str().is_some_and(|text| text.contains("${"))
    }

    /// Whether it is a mapping or a list.
    pub fn is_container(&self) -> bool {
        matches!(self.value, Value::List(_) | Value::Map(_))
    }

    /// The child at one step of a path: a text key of a mapping, or an index of a list.
    pub fn child(&self, step: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(map) => map.get(step),
            Value::List(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        }
    }

    pub(crate) fn child_mut(&mut self, step: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(map) => map.get_mut(step),
            Value::List(items) => items.get_mut(step.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// The node at a dotted path such as `trainer.stages.0.steps`; the empty path is the node.
    pub fn get(&self, path: &str) -> Option<&Node> {
        if path.is_empty() {
            return Some(self);
        }
        path.split('.').try_fold(self, Node::child)
    }

    /// How many nodes the tree has.
    pub(crate) fn size(&self) -> usize {
        match &self.value {
            Value::List(items) => 1 + items.iter().map(Node::size).sum::<usize>(),
            Value::Map(map) => 1 + map.values().map(Node::size).sum::<usize>(),
            _ => 1,
        }
    }

    /// What the value is, for messages: `the list [1, 2]`, `the text "abc"`.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "null".to_string(),
            Value::Bool(_) => format!("the boolean `{}`", self.brief()),
            Value::Int(_) => format!("the integer `{}`", self.brief()),
            Value::Float(_) => format!("the float `{}`", self.brief()),
            Value::Str(_) => format!("the text `{}`", self.brief()),
            Value::List(_) => "a list".to_string(),
            Value::Map(_) => "a mapping".to_string(),
        }
    }

    /// The value on one short line.
    pub(crate) fn brief(&self) -> String {
        let text = match &self.value {
            Value::Bool(yes) => yes.to_string(),
            Value::Null => "null".to_string(),
            _ => python::display(self),
        };
        let mut short: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(60)
            .collect();
        if short.len() < text.len() {
            short.push_str("...");
        }
        short
    }
}

/// Equality of what the values are, wherever they came from. NaN equals NaN.
impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        match (&self.value, &other.value) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::List(a), Value::List(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            _ => false,
        }
    }
}
