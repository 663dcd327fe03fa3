//! Applies value overrides to a composed tree: change, add, force-add, delete.
//!
//! The tree is closed: `key=value` needs the key to be there; `+key=value` needs it not to be;
//! `++key=value` does either. A dict merges into a mapping; everything else replaces.

use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::environment::Environment;
use crate::grammar::{MAX_DEPTH, Operation, Override};
use crate::interpolation::resolve::{Path, Resolver};
use crate::interpolation::select::SelectMissing;
use crate::merge::{NewKeys, merge, node_mut};
use crate::origin::Origin;
use crate::value::{Key, KeyKind, Map, Node, Value};

pub(crate) fn apply(
    root: &mut Node,
    change: &Override,
    environment: &Environment,
) -> Result<(), Diagnostics> {
    if change.package.is_some() {
        return Err(Diagnostic::new(format!(
            "`{}` looks like a group override, and there is no config group `{}`",
            change.text, change.key
        ))
        .at(&change.key_origin())
        .into());
    }
    if change.key.split('.').count() > MAX_DEPTH {
        return Err(
            Diagnostic::new(format!("a key of more than {MAX_DEPTH} steps"))
                .at(&change.key_origin())
                .into(),
        );
    }
    if change.operation == Operation::Delete {
        return delete(root, change);
    }
    let Some(value) = change.node() else {
        return Ok(());
    };
    if change.operation == Operation::Add && !value.is_container() {
        refuse_existing(root, change, environment)?;
    }
    let new_keys = match change.operation {
        Operation::Change => NewKeys::Refuse,
        _ => NewKeys::Add,
    };
    set(root, change, value, new_keys, environment).map_err(|problems| explain(change, problems))
}

/// Puts the ways out under a problem of `key=value`.
fn explain(change: &Override, problems: Diagnostics) -> Diagnostics {
    let mut explained = Diagnostics::new();
    for problem in problems.iter() {
        let mut problem = problem.clone();
        if change.operation == Operation::Change && problem.message().starts_with("there is no key")
        {
            problem = problem.note(format!("to add it, use +{}", change.text));
        }
        explained.push(problem);
    }
    explained
}

fn refuse_existing(
    root: &Node,
    change: &Override,
    environment: &Environment,
) -> Result<(), Diagnostics> {
    let resolver = Resolver::new(root, environment);
    let found = resolver.select(&change.key, &Path::new(), SelectMissing::Keep);
    let existing = match &found {
        Ok(Some(found)) => resolver.peek(found).ok(),
        // It is there, even if it cannot be resolved, or its parent is not a container.
        Ok(None) | Err(_) => root.get(&change.key),
    };
    match existing {
        Some(node) if !node.is_null() && !node.is_missing() => Err(Diagnostic::new(format!(
            "`{}` is there already, with the value `{}`",
            change.key,
            node.brief()
        ))
        .at(&change.key_origin())
        .note(format!("to change it, use {}", &change.text[1..]))
        .note(format!("to add or change it, use +{}", change.text))
        .note(format!("it is given {}", node.origin.at_key().at()))
        .into()),
        _ => Ok(()),
    }
}

fn set(
    root: &mut Node,
    change: &Override,
    value: Node,
    new_keys: NewKeys,
    environment: &Environment,
) -> Result<(), Diagnostics> {
    let names: Vec<&str> = change.key.split('.').collect();
    let (last, parents) = names.split_last().unwrap_or((&"", &[]));
    let mut path = Path::new();
    let mut here = &mut *root;
    for name in parents {
        let key = enter(here, name, &path, new_keys, change)?;
        path.push(key);
        here = child_mut(here, &path)?;
        if !here.is_container() {
            // A scalar in the way makes room.
            here.value = Value::Map(Map::new());
        }
    }
    let key = match &here.value {
        Value::List(_) => enter(here, last, &path, new_keys, change)?,
        _ => Key::from(*last),
    };
    path.push(key.clone());
    let existing = match &here.value {
        Value::Map(map) => map.get(&key),
        Value::List(items) => items.get(key.as_str().parse::<usize>().unwrap_or(usize::MAX)),
        _ => None,
    };
    match existing {
        None if new_keys == NewKeys::Refuse => Err(no_such_key(here, last, &path, change).into()),
        None => {
            if let Value::Map(map) = &mut here.value {
                map.insert(key, value);
            }
            Ok(())
        }
        Some(existing) if existing.is_container() && value.is_container() => {
            merge(root, &path, value, new_keys, environment)
        }
        Some(_) => {
            if let Some(target) = node_mut(root, &path) {
                *target = value;
            }
            Ok(())
        }
    }
}

/// The key of a step into `here`, which is made if it may be.
fn enter(
    here: &mut Node,
    name: &str,
    path: &Path,
    new_keys: NewKeys,
    change: &Override,
) -> Result<Key, Diagnostics> {
    let mut full = path.clone();
    full.push(Key::from(name));
    match &mut here.value {
        Value::List(items) => {
            let index = name
                .parse::<usize>()
                .ok()
                .filter(|index| *index < items.len());
            if index.is_none() {
                let what = if name.bytes().all(|b| b.is_ascii_digit()) {
                    format!("the list has {} items", items.len())
                } else {
                    format!("`{name}` is not the index of a list")
                };
                return Err(
                    Diagnostic::new(format!("there is no item `{}`", change.key))
                        .at(&change.key_origin())
                        .label(what)
                        .into(),
                );
            }
            Ok(Key::new(name, KeyKind::Integer))
        }
        Value::Map(map) => {
            if !map.contains_key(name) {
                if new_keys == NewKeys::Refuse {
                    return Err(no_such_key(here, name, &full, change).into());
                }
                let origin: Origin = change.key_origin();
                map.insert(Key::from(name), Node::new(Value::Map(Map::new()), origin));
            }
            Ok(Key::from(name))
        }
        _ => Ok(Key::from(name)),
    }
}

fn child_mut<'n>(here: &'n mut Node, path: &Path) -> Result<&'n mut Node, Diagnostics> {
    let step = &path[path.len() - 1..];
    node_mut(here, step).ok_or_else(|| Diagnostic::new("the key is gone").into())
}

/// `path` leads to the step that does not exist, named `name`.
fn no_such_key(here: &Node, name: &str, path: &Path, change: &Override) -> Diagnostic {
    let problem =
        Diagnostic::new(format!("there is no key `{}`", change.key)).at(&change.key_origin());
    let Some(map) = here.as_map() else {
        return problem.label(format!("it would be inside {}", here.describe()));
    };
    let keys: Vec<&str> = map
        .keys()
        .map(Key::as_str)
        .filter(|key| path.len() > 1 || *key != "hydra")
        .collect();
    let problem = match nearest(name, keys.iter().copied()) {
        Some(near) => {
            let mut names: Vec<&str> = change.key.split('.').collect();
            names[path.len() - 1] = near;
            problem.label(format!("did you mean `{}`?", names.join(".")))
        }
        None => problem.label(format!("`{name}` is not known")),
    };
    if keys.is_empty() || keys.len() > 40 {
        return problem;
    }
    problem.note(format!("keys: {}", keys.join(", ")))
}

fn delete(root: &mut Node, change: &Override) -> Result<(), Diagnostics> {
    let absent = || {
        Diagnostic::new(format!("cannot delete `{}`: it does not exist", change.key))
            .at(&change.key_origin())
    };
    let Some(existing) = root.get(&change.key) else {
        return Err(absent().into());
    };
    if let Some(expected) = change.node().filter(|node| !node.is_null())
        && !is_same(existing, &expected)
    {
        return Err(Diagnostic::new(format!(
            "cannot delete `{}`: its value is {} and not {}",
            change.key,
            existing.brief(),
            expected.brief()
        ))
        .at(&change.key_origin())
        .into());
    }
    let (parent, last) = match change.key.rsplit_once('.') {
        Some((parent, last)) => (parent, last),
        None => ("", change.key.as_str()),
    };
    let parent = parent
        .split('.')
        .filter(|step| !step.is_empty())
        .try_fold(root, Node::child_mut);
    match parent.map(|node| &mut node.value) {
        Some(Value::Map(map)) => {
            map.shift_remove(last);
        }
        Some(Value::List(items)) => {
            if let Ok(index) = last.parse::<usize>() {
                items.remove(index);
            }
        }
        _ => return Err(absent().into()),
    }
    Ok(())
}

/// Python's equality: an integer equals the float of the same value.
fn is_same(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (Value::Int(int), Value::Float(float)) | (Value::Float(float), Value::Int(int)) => {
            *float == *int as f64
        }
        _ => a == b,
    }
}
