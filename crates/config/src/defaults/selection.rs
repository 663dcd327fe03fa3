//! The groups that the command line selects, adds and deletes, and what defaults lists override.

use std::collections::{BTreeSet, HashMap};

use indexmap::IndexMap;

use super::item::{Item, Selection, What};
use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::grammar::{Operation, Override};
use crate::origin::Origin;
use crate::repository::Repository;

/// A choice that replaces the one in a defaults list.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    pub choice: Selection,
    pub origin: Origin,
    pub text: String,
    /// The config whose defaults list says `override`; `None` for the command line.
    pub written_in: Option<String>,
    used: bool,
}

#[derive(Clone, Debug)]
struct Deletion {
    name: Option<String>,
    origin: Origin,
    used: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    replacements: IndexMap<String, Replacement>,
    pub appended: Vec<Item>,
    deletions: IndexMap<String, Deletion>,
    /// Arguments that set values and select nothing.
    pub values: Vec<Override>,
    /// What was chosen for each override key, as far as the tree has been built.
    pub known: IndexMap<String, Option<String>>,
    known_by_group: HashMap<String, BTreeSet<String>>,
}

impl Choices {
    /// Sorts the arguments into those that select groups and those that set values. Sweeps are
    /// left out.
    pub(crate) fn new(
        repository: &Repository,
        overrides: &[Override],
    ) -> Result<Self, Diagnostics> {
        let mut choices = Choices::default();
        let mut problems = Diagnostics::new();
        for given in overrides.iter().filter(|given| given.sweep().is_none()) {
            let node = given.node();
            let is_dict = node.as_ref().is_some_and(|node| node.as_map().is_some());
            if is_dict || !repository.group_exists(&given.key) {
                choices.values.push(given.clone());
            } else if let Err(problem) = choices.select(given) {
                problems.push(problem);
            }
        }
        problems.into_result(choices)
    }

    fn select(&mut self, given: &Override) -> Result<(), Diagnostic> {
        let node = given.node();
        let origin = node
            .as_ref()
            .map_or_else(|| given.key_origin(), |node| node.origin.clone());
        let key = given.key_and_package();
        let text = given.text.to_string();
        match given.operation {
            Operation::ForceAdd => Err(Diagnostic::new(format!(
                "a config group cannot be force-added: '{text}'"
            ))
            .at(&given.key_origin())
            .note(format!("to select it, use {}", &text[2..]))
            .note(format!("to add it, use {}", &text[1..]))),
            Operation::Delete => {
                let name = match node.as_ref().filter(|node| !node.is_null()) {
                    None => None,
                    Some(node) => Some(node.as_str().map(str::to_string).ok_or_else(|| {
                        Diagnostic::new(format!(
                            "cannot delete '{key}': the option must be a string"
                        ))
                        .at(&node.origin)
                    })?),
                };
                let used = false;
                self.deletions.insert(key, Deletion { name, origin, used });
                Ok(())
            }
            Operation::Add | Operation::Change => {
                let choice = match &node {
                    Some(node) if !node.is_null() => Selection::from_node(node)?,
                    _ => {
                        return Err(Diagnostic::new(format!(
                            "the option of the config group `{key}` must be a string or a list"
                        ))
                        .at(&origin)
                        .note(format!("to leave the group out, use ~{key}")));
                    }
                };
                if given.operation == Operation::Add {
                    self.append(&given.key, given.package.clone(), choice, origin, text);
                } else {
                    self.replacements.insert(
                        key,
                        Replacement {
                            choice,
                            origin,
                            text,
                            written_in: None,
                            used: false,
                        },
                    );
                }
                Ok(())
            }
        }
    }

    fn append(
        &mut self,
        group: &str,
        package: Option<String>,
        choice: Selection,
        origin: Origin,
        text: String,
    ) {
        let what = What::Group {
            group: group.to_string(),
            choice,
        };
        let mut item = Item::new(what, package, origin);
        item.is_appended = true;
        item.text = text;
        self.appended.push(item);
    }

    /// Turns `group=option` for a group that nothing lists into `+group=option`.
    pub(crate) fn turn_into_append(&mut self, key: &str) -> bool {
        let Some(replacement) = self.replacements.shift_remove(key) else {
            return false;
        };
        let (group, package) = match key.split_once('@') {
            Some((group, package)) => (group, Some(package.to_string())),
            None => (key, None),
        };
        self.append(
            group,
            package,
            replacement.choice,
            replacement.origin,
            replacement.text,
        );
        true
    }

    /// Turns `+group=option` for a group that is listed already into `group=option`.
    pub(crate) fn turn_into_replacement(&mut self, key: &str) -> bool {
        let at = self.appended.iter().position(|item| {
            let mut item = item.clone();
            item.set_parent("", "");
            item.override_key() == key
        });
        let Some(at) = at else { return false };
        let item = self.appended.remove(at);
        let What::Group { choice, .. } = item.what else {
            return false;
        };
        self.replacements.insert(
            key.to_string(),
            Replacement {
                choice,
                origin: item.origin,
                text: item.text,
                written_in: None,
                used: false,
            },
        );
        true
    }

    /// Forgets what a first build of the tree has seen, and what its files override.
    pub(crate) fn restart(&mut self) {
        self.known.clear();
        self.known_by_group.clear();
        self.replacements.retain(|_, r| r.written_in.is_none());
        for replacement in self.replacements.values_mut() {
            replacement.used = false;
        }
        for deletion in self.deletions.values_mut() {
            deletion.used = false;
        }
    }

    /// An `override group: option` of a defaults list. The first to say so wins.
    pub(crate) fn add_override(&mut self, config: &str, item: &Item) {
        let What::Group { choice, .. } = &item.what else {
            return;
        };
        self.replacements
            .entry(item.override_key())
            .or_insert_with(|| Replacement {
                choice: choice.clone(),
                origin: item.origin.clone(),
                text: item.text.clone(),
                written_in: Some(config.to_string()),
                used: false,
            });
    }

    /// Gives an item the choice that replaces its own.
    pub(crate) fn replace(&mut self, item: &mut Item) {
        if !item.is_group() {
            return;
        }
        if let Some(replacement) = self.replacements.get_mut(&item.override_key()) {
            replacement.used = true;
            if let What::Group { choice, .. } = &mut item.what {
                *choice = replacement.choice.clone();
            }
            item.origin = replacement.origin.clone();
            item.text = replacement.text.clone();
        }
    }

    pub(crate) fn delete(&mut self, item: &Item) -> bool {
        if !item.is_group() {
            return false;
        }
        match self.deletions.get_mut(&item.override_key()) {
            Some(deletion)
                if deletion.name.is_none() || deletion.name.as_deref() == item.name() =>
            {
                deletion.used = true;
                true
            }
            _ => false,
        }
    }

    /// Records what a group was given; the key if it was given something else before.
    pub(crate) fn record(&mut self, item: &Item) -> Result<(), (String, Option<String>)> {
        if !item.is_group() {
            return Ok(());
        }
        let key = item.override_key();
        let name = item.name().map(str::to_string);
        self.known_by_group
            .entry(item.group_path())
            .or_default()
            .insert(key.clone());
        match self.known.get(&key) {
            Some(earlier) if *earlier != name => Err((key, earlier.clone())),
            Some(_) => Ok(()),
            None => {
                self.known.insert(key, name);
                Ok(())
            }
        }
    }

    /// Replacements from the command line that met no group, and no group under another package.
    pub(crate) fn unmatched(&self) -> Vec<String> {
        self.replacements
            .iter()
            .filter(|(key, replacement)| {
                !replacement.used
                    && replacement.written_in.is_none()
                    && !self.known_by_group.contains_key(group_of(key))
            })
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Complains about replacements and deletions that met nothing.
    pub(crate) fn check_used(&self, problems: &mut Diagnostics) {
        for (key, replacement) in self.replacements.iter().filter(|(_, r)| !r.used) {
            let place = match &replacement.written_in {
                Some(config) => format!("in '{config}': "),
                None => String::new(),
            };
            let mut problem = Diagnostic::new(format!(
                "{place}cannot override '{key}': it is not in the defaults list"
            ))
            .at(&match replacement.written_in {
                Some(_) => replacement.origin.clone(),
                None => replacement.origin.at_key(),
            });
            if let Some(keys) = self.known_by_group.get(group_of(key)) {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                problem = problem.label(match keys[..] {
                    [only] => format!("did you mean to override {only}?"),
                    _ => format!("did you mean to override one of {}?", keys.join(", ")),
                });
            } else if let Some(near) = nearest(key, self.known.keys().map(String::as_str)) {
                problem = problem.label(format!("did you mean `{near}`?"));
            }
            if replacement.written_in.is_none() {
                problem = problem.note(format!("to add it, use +{}", replacement.text));
            }
            problems.push(problem);
        }
        for (key, deletion) in self.deletions.iter().filter(|(_, d)| !d.used) {
            let what = match &deletion.name {
                Some(name) => format!("{key}={name}"),
                None => key.clone(),
            };
            let mut problem = Diagnostic::new(format!(
                "cannot delete '{what}': it is not in the defaults list"
            ))
            .at(&deletion.origin);
            if let Some(Some(chosen)) = self.known.get(key) {
                problem = problem.label(format!("it is {key}={chosen}"));
            }
            problems.push(problem);
        }
    }
}

fn group_of(key: &str) -> &str {
    key.split_once('@').map_or(key, |(group, _)| group)
}
