//! Merging one tree into another, as OmegaConf merges.
//!
//! Mappings merge key by key, a list replaces a list, anything may replace a scalar or null, and
//! `???` replaces nothing. A mapping and a list do not merge. A mapping or list that meets an
//! interpolation merges into a copy of what the interpolation refers to, if that is a container.

use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::environment::Environment;
use crate::interpolation::resolve::{Found, Path, Resolver, dotted};
use crate::value::{Key, Map, Node, Value};

/// Whether keys that the target lacks are added or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewKeys {
    Add,
    Refuse,
}

/// Merges `source` into the node at `path` of `root`.
pub(crate) fn merge(
    root: &mut Node,
    path: &Path,
    source: Node,
    new_keys: NewKeys,
    environment: &Environment,
) -> Result<(), Diagnostics> {
    expand_interpolations(root, path, &source, environment);
    let mut problems = Diagnostics::new();
    let mut name = path.clone();
    if let Some(target) = node_mut(root, path) {
        merge_node(target, source, new_keys, &mut name, &mut problems);
    }
    problems.into_result(())
}

fn merge_node(
    target: &mut Node,
    source: Node,
    new_keys: NewKeys,
    path: &mut Path,
    problems: &mut Diagnostics,
) {
    if source.is_missing() {
        return;
    }
    match (&mut target.value, source.value) {
        (Value::Map(into), Value::Map(from)) => merge_map(into, from, new_keys, path, problems),
        (Value::Map(_), Value::List(_)) => {
            problems.push(kinds(path, "a list", "a mapping", &source.origin));
        }
        (Value::List(_), Value::Map(_)) => {
            problems.push(kinds(path, "a mapping", "a list", &source.origin));
        }
        (_, value) => *target = Node::new(value, source.origin),
    }
}

fn merge_map(
    into: &mut Map,
    from: Map,
    new_keys: NewKeys,
    path: &mut Path,
    problems: &mut Diagnostics,
) {
    for (key, child) in from {
        path.push(key.clone());
        if let Some(existing) = into.get_mut(&key) {
            merge_node(existing, child, new_keys, path, problems);
        } else if new_keys == NewKeys::Add {
            into.insert(key, child);
        } else {
            problems.push(unknown_key(into, &key, path, &child));
        }
        path.pop();
    }
}

fn kinds(path: &Path, from: &str, into: &str, origin: &crate::origin::Origin) -> Diagnostic {
    Diagnostic::new(format!(
        "cannot merge {from} into {into} at `{}`",
        dotted(path)
    ))
    .at(origin)
    .label(format!("`{}` is {into}", dotted(path)))
}

fn unknown_key(map: &Map, key: &Key, path: &Path, child: &Node) -> Diagnostic {
    let mut diagnostic =
        Diagnostic::new(format!("there is no key `{}`", dotted(path))).at(&child.origin.at_key());
    if let Some(near) = nearest(key.as_str(), map.keys().map(Key::as_str)) {
        diagnostic = diagnostic.label(format!("did you mean `{near}`?"));
    }
    diagnostic
}

/// Replaces interpolations that `source` would merge a container into, by what they refer to.
fn expand_interpolations(root: &mut Node, path: &Path, source: &Node, environment: &Environment) {
    let mut found = Vec::new();
    if let Some(target) = node(root, path) {
        let mut here = path.clone();
        collect(root, target, source, &mut here, environment, &mut found);
    }
    for (path, expanded) in found {
        if let Some(target) = node_mut(root, &path) {
            target.value = expanded;
        }
    }
}

fn collect(
    root: &Node,
    target: &Node,
    source: &Node,
    path: &mut Path,
    environment: &Environment,
    found: &mut Vec<(Path, Value)>,
) {
    if target.is_interpolation() && source.is_container() {
        let resolver = Resolver::new(root, environment);
        // One that cannot be resolved yet is simply replaced.
        let container = match resolver.dereference(path) {
            Ok(Found::New(node)) => Some(node),
            Ok(Found::At(at)) => node(root, &at).cloned(),
            Err(_) => None,
        };
        if let Some(container) = container.filter(Node::is_container) {
            found.push((path.clone(), container.value));
        }
        return;
    }
    if let (Some(into), Some(from)) = (target.as_map(), source.as_map()) {
        for (key, child) in from {
            if let Some(existing) = into.get(key) {
                path.push(key.clone());
                collect(root, existing, child, path, environment, found);
                path.pop();
            }
        }
    }
}

pub(crate) fn node<'n>(root: &'n Node, path: &[Key]) -> Option<&'n Node> {
    path.iter().try_fold(root, |node, key| match &node.value {
        Value::Map(map) => map.get(key),
        Value::List(items) => items.get(key.as_str().parse::<usize>().ok()?),
        _ => None,
    })
}

pub(crate) fn node_mut<'n>(root: &'n mut Node, path: &[Key]) -> Option<&'n mut Node> {
    path.iter()
        .try_fold(root, |node, key| match &mut node.value {
            Value::Map(map) => map.get_mut(key),
            Value::List(items) => items.get_mut(key.as_str().parse::<usize>().ok()?),
            _ => None,
        })
}
