//! Finding the node that a key leads to, following interpolations on the way.

use super::resolve::{Failure, Found, Path, Resolver, step};
use crate::diagnostic::nearest;
use crate::value::{Key, KeyKind, Node, Value};

impl Resolver<'_> {
    /// Finds a key, relative to the parent of `path` if it begins with dots. Interpolations on the
    /// way, and at the end, are followed. `None` if the key does not exist.
    pub(crate) fn select(
        &self,
        key: &str,
        path: &Path,
        missing: SelectMissing,
    ) -> Result<Option<Found>, Failure> {
        let dots = key.bytes().take_while(|b| *b == b'.').count();
        if dots > path.len() {
            return Err(Failure::new(format!("`{key}` leads above the root")));
        }
        let start: Path = if dots == 0 {
            Path::new()
        } else {
            path[..path.len() - dots].to_vec()
        };
        let mut here = Found::At(start);
        let rest = &key[dots..];
        if rest.is_empty() {
            return Ok(Some(here));
        }
        let names: Vec<&str> = rest
            .split(['.', '[', ']'])
            .filter(|name| !name.is_empty())
            .collect();
        for (index, name) in names.iter().enumerate() {
            let is_last = index + 1 == names.len();
            here = match self.enter(here, name)? {
                Some(next) => next,
                None => return Ok(None),
            };
            if self.peek(&here)?.is_missing() {
                let full = names[..=index].join(".");
                match missing {
                    SelectMissing::Refuse => {
                        return Err(Failure::new(format!("`{full}` is still to be given (???)")));
                    }
                    SelectMissing::Keep if is_last => return Ok(Some(here)),
                    SelectMissing::Keep => {}
                }
            }
            if let Found::At(target) = &here {
                here = self.dereference(target)?;
            }
            if !is_last && !self.peek(&here)?.is_container() {
                let node = self.peek(&here)?.describe();
                return Err(Failure {
                    message: format!(
                        "`{}` is {node} and has no `{}`",
                        names[..=index].join("."),
                        names[index + 1]
                    ),
                    label: String::new(),
                    is_type: true,
                });
            }
        }
        Ok(Some(here))
    }

    fn enter(&self, here: Found, name: &str) -> Result<Option<Found>, Failure> {
        match here {
            Found::New(node) => Ok(child(&node, name)?.map(|(_, child)| Found::New(child.clone()))),
            Found::At(mut path) => {
                let Some(node) = self.node(&path) else {
                    return Ok(None);
                };
                Ok(child(node, name)?.map(|(key, _)| {
                    path.push(key);
                    Found::At(path)
                }))
            }
        }
    }

    /// Why `key` does not exist, with the nearest key that does.
    pub(super) fn not_found(&self, key: &str, path: &Path) -> Failure {
        let mut failure = Failure::new(format!("there is no key `{key}`"));
        let dots = key.bytes().take_while(|b| *b == b'.').count();
        let names: Vec<&str> = key[dots..].split('.').collect();
        let base = match dots {
            0 => 0,
            dots => path.len().saturating_sub(dots),
        };
        let start = if dots == 0 { &path[..0] } else { &path[..base] };
        let mut node = start.iter().try_fold(self.root, step);
        for (index, name) in names.iter().enumerate() {
            let Some(current) = node else { break };
            let next = current.child(name);
            if next.is_none() {
                if let Some(map) = current.as_map() {
                    let keys: Vec<&str> = map.keys().map(Key::as_str).collect();
                    if let Some(near) = nearest(name, keys.iter().copied()) {
                        let mut full: Vec<&str> = names[..index].to_vec();
                        full.push(near);
                        let full = format!("{}{}", ".".repeat(dots), full.join("."));
                        failure.label = format!("did you mean `{full}`?");
                    } else if dots == 0 && sibling(self.root, path, names[0]) {
                        failure.label = format!("did you mean `.{key}`?");
                    } else if index > 0 && (1..20).contains(&keys.len()) {
                        failure.label = format!("there are {}", keys.join(", "));
                    }
                }
                break;
            }
            node = next;
        }
        failure
    }
}

/// Whether `???` at the end of a selected path is a value or a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SelectMissing {
    Keep,
    Refuse,
}

fn sibling(root: &Node, path: &Path, name: &str) -> bool {
    let parent = &path[..path.len().saturating_sub(1)];
    parent
        .iter()
        .try_fold(root, step)
        .is_some_and(|node| node.child(name).is_some())
}

fn child<'n>(node: &'n Node, name: &str) -> Result<Option<(Key, &'n Node)>, Failure> {
    match &node.value {
        Value::Map(map) => Ok(map
            .get_key_value(name)
            .map(|(key, child)| (key.clone(), child))),
        Value::List(items) => match name.parse::<usize>() {
            Ok(index) => Ok(items
                .get(index)
                .map(|child| (Key::new(name, KeyKind::Integer), child))),
            Err(_) => Err(Failure::new(format!("`{name}` is not the index of a list"))),
        },
        _ => Ok(None),
    }
}
