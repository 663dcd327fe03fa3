//! Interpolations: `${key}`, `${.relative}`, `${resolver:argument}`, alone or inside text.
//!
//! The grammar is OmegaConf's. [`parse`] gives the syntax tree, [`evaluate`] its value, [`select`]
//! the node a key leads to; [`resolvers`] holds `oc.env` and the others. [`resolve`] makes a
//! resolved copy of a whole tree.

mod evaluate;
pub(crate) mod parse;
pub(crate) mod resolve;
pub(crate) mod resolvers;
pub(crate) mod select;

use crate::value::Key;

/// Deepest nesting of interpolations, lists and dicts inside one text.
pub(crate) const MAX_DEPTH: usize = 50;

/// A text with interpolations in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template(pub Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Reference(Reference),
}

/// One `${...}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reference {
    /// `dots` is 0 for a key from the root, 1 for a key beside the interpolation, and so on.
    Key { dots: usize, steps: Vec<Step> },
    Call {
        name: Vec<Step>,
        arguments: Vec<Expression>,
    },
}

/// A part of a key or of a resolver's name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Name(String),
    Reference(Box<Reference>),
}

/// An argument of a resolver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Reference(Reference),
    /// Several pieces, joined to a text.
    Joined(Vec<Part>),
    List(Vec<Expression>),
    Dict(Vec<(Key, Expression)>),
}
