//! The resolvers: `oc.env`, `oc.decode`, `oc.select`, `oc.create`, `oc.dict.keys`,
//! `oc.dict.values`, `oc.deprecated`, `hydra` and `now`.

use std::sync::Arc;

use super::parse;
use super::resolve::{Failure, Found, Path, Resolver, dotted};
use super::select::SelectMissing;
use crate::diagnostic::nearest;
use crate::origin::{Origin, Place};
use crate::python;
use crate::value::{KeyKind, Node, Value};

/// The name of each resolver, and how many arguments it takes.
const SIGNATURES: [(&str, usize, usize); 9] = [
    ("oc.env", 1, 2),
    ("oc.decode", 1, 1),
    ("oc.select", 1, 2),
    ("oc.create", 1, 1),
    ("oc.dict.keys", 1, 1),
    ("oc.dict.values", 1, 1),
    ("oc.deprecated", 1, 2),
    ("hydra", 1, 1),
    ("now", 1, 1),
];

pub(crate) fn call(
    resolver: &Resolver<'_>,
    name: &str,
    arguments: Vec<Node>,
    path: &Path,
    site: &Origin,
) -> Result<Found, Failure> {
    let Some((_, least, most)) = SIGNATURES.iter().find(|(known, ..)| *known == name) else {
        return Err(unknown(name));
    };
    if !(*least..=*most).contains(&arguments.len()) {
        let wanted = match (least, most) {
            (1, 1) => "one argument".to_string(),
            (least, most) => format!("{least} to {most} arguments"),
        };
        let given = arguments.len();
        return Err(Failure::new(format!(
            "{name} takes {wanted}, and {given} were given"
        )));
    }
    let made = |value: Value| Ok(Found::New(Node::new(value, site.clone())));
    match name {
        "oc.env" => env(resolver, arguments, site),
        "oc.decode" => {
            let expression = first(arguments)?;
            match &expression.value {
                Value::Null => made(Value::Null),
                Value::Str(text) => {
                    let parsed = parse::element(text).map_err(|error| {
                        Failure::new(format!("oc.decode cannot read `{text}`: {}", error.message))
                    })?;
                    resolver.expression(&parsed, path, site).map(Found::New)
                }
                _ => Err(Failure::new(format!(
                    "oc.decode takes text, not {}",
                    expression.describe()
                ))),
            }
        }
        "oc.select" => select(resolver, arguments, path, site),
        "oc.create" => first(arguments).map(Found::New),
        "oc.dict.keys" => {
            let key = first(arguments)?;
            let found = mapping(resolver, name, &key, path)?;
            let node = resolver.peek(&found)?;
            let keys = node.as_map().into_iter().flatten().map(|(key, child)| {
                let value = match key.kind() {
                    KeyKind::Text => Value::Str(key.to_string()),
                    KeyKind::Boolean => Value::Bool(key.as_str() == "true"),
                    KeyKind::Integer => key.as_str().parse().map_or(Value::Null, Value::Int),
                    KeyKind::Float => key.as_str().parse().map_or(Value::Null, Value::Float),
                };
                Node::new(value, child.origin.at_key())
            });
            made(Value::List(keys.collect()))
        }
        "oc.dict.values" => {
            let key = first(arguments)?;
            let copy = match mapping(resolver, name, &key, path)? {
                Found::New(node) => node,
                Found::At(target) => resolver.resolved_copy(&target)?,
            };
            match copy.value {
                Value::Map(map) => made(Value::List(map.into_values().collect())),
                _ => made(Value::List(Vec::new())),
            }
        }
        "oc.deprecated" => {
            let mut arguments = arguments.into_iter();
            let key = text(name, arguments.next().as_ref())?;
            match resolver.select(&key, path, SelectMissing::Refuse)? {
                Some(found) => {
                    let old = dotted(path);
                    resolver
                        .environment
                        .warn(format!("`{old}` is deprecated: use `{key}`"));
                    Ok(found)
                }
                None => Err(Failure::new(format!("there is no key `{key}`"))),
            }
        }
        "hydra" => {
            let key = text(name, arguments.first())?;
            resolver
                .select(&format!("hydra.{key}"), path, SelectMissing::Refuse)?
                .ok_or_else(|| Failure::new(format!("there is no key `hydra.{key}`")))
        }
        "now" => {
            let format = text(name, arguments.first())?;
            let now = resolver
                .environment
                .now(&format)
                .ok_or_else(|| Failure::new(format!("`{format}` is not a format of a time")))?;
            made(Value::Str(now))
        }
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Failure {
    let names = SIGNATURES.map(|(name, ..)| name);
    let mut failure = Failure::new(format!(
        "there is no resolver `{name}`; there are {}",
        names.join(", ")
    ));
    if let Some(near) = nearest(name, names) {
        failure.label = format!("did you mean `{near}`?");
    }
    failure
}

/// The variable, or the default as text. A variable that is set and empty is set.
fn env(resolver: &Resolver<'_>, arguments: Vec<Node>, site: &Origin) -> Result<Found, Failure> {
    let mut arguments = arguments.into_iter();
    let name = text("oc.env", arguments.next().as_ref())?;
    let default = arguments.next();
    if let Some(value) = resolver.environment.variable(&name) {
        let mut origin = site.clone();
        origin.place = Place::Environment(Arc::from(name));
        origin.read_at = Some(Arc::new(site.clone()));
        return Ok(Found::New(Node::new(Value::Str(value), origin)));
    }
    let Some(default) = default else {
        let mut failure = Failure::new(format!("the environment variable `{name}` is not set"));
        failure.label = format!("set {name}, or give a default: ${{oc.env:{name},DEFAULT}}");
        return Err(failure);
    };
    let value = match default.value {
        Value::Null => Value::Null,
        _ => Value::Str(python::display(&default)),
    };
    Ok(Found::New(Node::new(value, site.clone())))
}

/// The value of a key, or the default (null if there is none) when it is absent or `???`.
fn select(
    resolver: &Resolver<'_>,
    arguments: Vec<Node>,
    path: &Path,
    site: &Origin,
) -> Result<Found, Failure> {
    let mut arguments = arguments.into_iter();
    let key = text("oc.select", arguments.next().as_ref())?;
    let default = arguments
        .next()
        .unwrap_or_else(|| Node::new(Value::Null, site.clone()));
    match resolver.select(&key, path, SelectMissing::Keep) {
        Ok(Some(found)) if !resolver.peek(&found)?.is_missing() => Ok(found),
        Ok(_) => Ok(Found::New(default)),
        Err(failure) if failure.is_type => Ok(Found::New(default)),
        Err(failure) => Err(failure),
    }
}

fn mapping(resolver: &Resolver<'_>, name: &str, key: &Node, path: &Path) -> Result<Found, Failure> {
    let key = text(name, Some(key))?;
    let found = resolver
        .select(&key, path, SelectMissing::Refuse)?
        .ok_or_else(|| Failure::new(format!("there is no key `{key}`")))?;
    let node = resolver.peek(&found)?;
    if node.as_map().is_none() {
        return Err(Failure::new(format!(
            "{name} takes a mapping, and `{key}` is {}",
            node.describe()
        )));
    }
    Ok(found)
}

fn first(arguments: Vec<Node>) -> Result<Node, Failure> {
    let mut arguments = arguments.into_iter();
    arguments
        .next()
        .ok_or_else(|| Failure::new("an argument is missing"))
}

fn text(name: &str, argument: Option<&Node>) -> Result<String, Failure> {
    match argument {
        Some(Node {
            value: Value::Str(text),
            ..
        }) => Ok(text.clone()),
        Some(other) => Err(Failure::new(format!(
            "{name} takes text, not {}",
            other.describe()
        ))),
        None => Err(Failure::new(format!("{name} takes an argument"))),
    }
}
