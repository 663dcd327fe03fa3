//! Expands defaults lists into a tree of files, and flattens it into merge order.

use super::item::{Item, Selection, What, read_list};
use super::order::{Merge, flatten};
use super::selection::Choices;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::environment::Environment;
use crate::grammar::MAX_DEPTH;
use crate::interpolation::parse;
use crate::interpolation::resolve::{Path, Resolver};
use crate::origin::{Choice, Origin};
use crate::repository::{Loaded, Repository};
use crate::value::{Key, Map, Node, Value};

/// A file of the tree, or a `_self_`, with what its defaults list brings in.
pub(crate) struct TreeNode {
    pub item: Item,
    pub children: Vec<TreeNode>,
    /// The content, until it is merged.
    pub(super) content: Option<Node>,
}

impl TreeNode {
    fn leaf(item: Item) -> Self {
        TreeNode {
            item,
            children: Vec::new(),
            content: None,
        }
    }
}

pub(crate) struct Builder<'a> {
    pub repository: &'a Repository,
    pub environment: &'a Environment,
    pub choices: Choices,
    /// A group left at `???` is skipped and not refused.
    pub skip_missing: bool,
    pub(super) problems: Diagnostics,
    /// Top-level keys that an option which does not exist would have filled.
    pub(super) absent: Vec<String>,
    /// Override keys that were given two choices, one of them by `+`.
    conflicts: Vec<String>,
    ancestors: Vec<String>,
}

/// How the command line's choice of a group was understood otherwise than it is written.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    IntoReplacement,
    IntoAppend,
}

/// The result of expanding all lists.
pub(crate) struct Built {
    pub roots: Vec<TreeNode>,
    pub merges: Vec<Merge>,
    pub choices: Choices,
    /// Options that do not exist, and nothing else: the rest of the tree is whole.
    pub problems: Diagnostics,
    /// Top-level keys that they would have filled.
    pub absent: Vec<String>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        repository: &'a Repository,
        environment: &'a Environment,
        choices: Choices,
    ) -> Self {
        Builder {
            repository,
            environment,
            choices,
            skip_missing: false,
            problems: Diagnostics::new(),
            absent: Vec::new(),
            conflicts: Vec::new(),
            ancestors: Vec::new(),
        }
    }

    /// Expands the defaults of `hydra/config` and of the primary config. With `lenient`,
    /// `group=option` and `+group=option` are turned into each other where only the other fits.
    pub(crate) fn build(mut self, primary: &str, lenient: bool) -> Result<Built, Diagnostics> {
        let mut turned = Vec::new();
        loop {
            let mut roots = self.roots(primary);
            let mut merges = Vec::new();
            for root in &mut roots {
                flatten(root, Some("<root>"), &mut merges);
            }
            self.refuse_duplicates(&merges);
            if lenient && self.turn_one(&mut turned) {
                self.choices.restart();
                self.problems = Diagnostics::new();
                self.absent.clear();
                self.conflicts.clear();
                continue;
            }
            if self.problems.is_empty() {
                self.choices.check_used(&mut self.problems);
            }
            let rest_is_whole = self.problems.len() == self.absent.len()
                && self.absent.iter().all(|key| !key.is_empty());
            if !rest_is_whole {
                return Err(self.problems);
            }
            return Ok(Built {
                roots,
                merges,
                choices: self.choices,
                problems: self.problems,
                absent: self.absent,
            });
        }
    }

    /// A choice may be turned back: what nothing lists at first may be listed by what another one appends. Once in each
    /// direction, so that there is an end.
    fn turn_one(&mut self, turned: &mut Vec<(String, Turn)>) -> bool {
        let replace = std::mem::take(&mut self.conflicts);
        let replace = replace.into_iter().map(|key| (key, Turn::IntoReplacement));
        let append = self.choices.unmatched().into_iter();
        let append = append.map(|key| (key, Turn::IntoAppend));
        for (key, turn) in replace.chain(append) {
            let is_new = !turned.iter().any(|done| *done == (key.clone(), turn));
            let is_turned = is_new
                && match turn {
                    Turn::IntoReplacement => self.choices.turn_into_replacement(&key),
                    Turn::IntoAppend => self.choices.turn_into_append(&key),
                };
            if is_turned {
                turned.push((key, turn));
                return true;
            }
        }
        false
    }

    fn roots(&mut self, primary: &str) -> Vec<TreeNode> {
        // The primary config goes first, so that it can override Hydra's groups.
        let primary = self.expand(Item::primary(primary), None, false);
        let mut hydra = Item::new(
            What::Config("hydra/config".to_string()),
            None,
            Origin::built_in(),
        );
        hydra.set_parent("", "");
        let hydra = self.expand(hydra, None, false);
        vec![hydra, primary]
    }

    fn refuse_duplicates(&mut self, merges: &[Merge]) {
        let mut seen = std::collections::HashSet::new();
        for merge in merges {
            let Some(key) = &merge.override_key else {
                continue;
            };
            if !seen.insert(key) && !self.conflicts.contains(key) {
                self.conflicts.push(key.clone());
                self.problems.push(
                    Diagnostic::new(format!(
                        "multiple values for `{key}`: it is in the defaults list already"
                    ))
                    .at(&merge.origin),
                );
            }
        }
    }

    /// Expands one item whose parent is set.
    fn expand(&mut self, mut item: Item, parent: Option<&str>, interpolated: bool) -> TreeNode {
        let loaded = if item.is_missing() || (item.is_group() && item.name().is_none()) {
            None
        } else {
            match self.load(&item) {
                Ok(loaded) => loaded,
                Err(problem) => {
                    self.problems.push(problem);
                    return TreeNode::leaf(item);
                }
            }
        };
        if let Some(package) = loaded.as_ref().and_then(|loaded| loaded.package.as_ref()) {
            item.set_header(package);
        }
        if item.final_package().split('.').count() > MAX_DEPTH {
            let message = format!("a package of more than {MAX_DEPTH} steps");
            self.problems
                .push(Diagnostic::new(message).at(&item.origin));
            return TreeNode::leaf(item);
        }
        if self.choices.delete(&item) {
            item.deleted = true;
            return TreeNode::leaf(item);
        }
        self.record(&item);
        if item.name().is_none() {
            return TreeNode::leaf(item);
        }
        if item.is_missing() {
            self.require_choice(&item);
            return TreeNode::leaf(item);
        }
        let Some(loaded) = loaded else {
            if item.optional {
                item.deleted = true;
            } else {
                self.not_found(&item, parent);
            }
            return TreeNode::leaf(item);
        };
        let config = item.config_path();
        if self.ancestors.contains(&config) {
            let chain = self.ancestors.join(" -> ");
            self.problems.push(
                Diagnostic::new(format!("a cycle of defaults lists: {chain} -> {config}"))
                    .at(&item.origin),
            );
            return TreeNode::leaf(item);
        }
        self.ancestors.push(config.clone());
        let children = self.children(&item, &config, &loaded, interpolated);
        self.ancestors.pop();
        TreeNode {
            item,
            children,
            content: Some(loaded.root),
        }
    }

    fn load(&self, item: &Item) -> Result<Option<Loaded>, Diagnostic> {
        let chosen_by = (!item.is_primary && item.origin.text().is_some()).then(|| Choice {
            what: item.text.clone(),
            origin: item.origin.clone(),
        });
        self.repository.load(&item.config_path(), chosen_by)
    }

    fn children(
        &mut self,
        item: &Item,
        config: &str,
        loaded: &Loaded,
        interpolated: bool,
    ) -> Vec<TreeNode> {
        let mut list = match read_list(config, loaded.defaults.as_ref(), &loaded.layer) {
            Ok(list) => list,
            Err(problem) => {
                self.problems.push(problem);
                return Vec::new();
            }
        };
        let is_root = item.is_primary;
        if !list.is_empty() || (is_root && !self.choices.appended.is_empty()) {
            self.add_self(item, config, &mut list, loaded);
        }
        if is_root {
            list.extend(self.choices.appended.iter().cloned());
        }
        let (group, package) = (item.group_path(), item.final_package());
        for child in list.iter_mut().filter(|child| !child.is_self()) {
            child.set_parent(&group, &package);
        }
        self.collect_overrides(config, &list, interpolated);

        // From the end, so that what comes later is known to interpolations that come earlier.
        let mut children = Vec::new();
        for mut child in list.into_iter().rev() {
            if child.is_override {
                continue;
            }
            if child.is_self() {
                children.push(TreeNode::leaf(child));
                continue;
            }
            self.choices.replace(&mut child);
            if let What::Group {
                group: name,
                choice: Selection::Several(options),
            } = &child.what
            {
                for option in options.iter().rev() {
                    let one = self.option(&child, name, option, config);
                    children.push(self.expand(one, Some(config), interpolated));
                }
            } else if child.is_interpolation() {
                children.push(TreeNode::leaf(child));
            } else {
                children.push(self.expand(child, Some(config), interpolated));
            }
        }
        for child in &mut children {
            if child.children.is_empty() && child.content.is_none() && child.item.is_interpolation()
            {
                let mut item = child.item.clone();
                match self.interpolate(&mut item) {
                    Ok(()) => *child = self.expand(item, Some(config), true),
                    Err(problem) => self.problems.push(problem),
                }
            }
        }
        children.reverse();
        children
    }

    /// One option of a list of options, as a config file of its own.
    fn option(&mut self, list: &Item, group: &str, option: &str, config: &str) -> Item {
        if option.contains("${") {
            self.problems.push(
                Diagnostic::new(format!(
                    "in '{config}': an interpolation cannot stand in a list of options"
                ))
                .at(&list.origin),
            );
        }
        let mut item = Item::new(
            What::Config(format!("{group}/{option}")),
            list.package.clone(),
            list.origin.clone(),
        );
        item.optional = list.optional;
        item.text = list.text.clone();
        item.set_parent(&list.parent_group, &list.parent_package);
        item
    }

    /// Without `_self_`, the file's own content comes last.
    fn add_self(&mut self, item: &Item, config: &str, list: &mut Vec<Item>, loaded: &Loaded) {
        let selves = list.iter().filter(|child| child.is_self()).count();
        let others = list.iter().filter(|child| !child.is_override).count();
        if selves > 1 {
            self.problems.push(
                Diagnostic::new(format!(
                    "in '{config}': `_self_` is in the defaults list twice"
                ))
                .at(&list
                    .iter()
                    .rfind(|child| child.is_self())
                    .map_or_else(Origin::built_in, |child| child.origin.clone())),
            );
        }
        if (selves == 0 && others > 0) || list.is_empty() {
            let has_content = loaded.root.as_map().is_some_and(|map| !map.is_empty());
            if item.is_primary && has_content && others > 0 {
                self.environment.warn(format!(
                    "in '{config}': the defaults list has no `_self_`, so the file's own values \
                     come last"
                ));
            }
            list.push(Item::new(What::Itself, None, Origin::built_in()));
        }
    }

    fn collect_overrides(&mut self, config: &str, list: &[Item], interpolated: bool) {
        let mut last_override: Option<&Item> = None;
        for child in list.iter().filter(|child| !child.is_self()) {
            if let Some(before) = last_override
                && !child.is_override
                && !child.is_appended
            {
                self.problems.push(
                    Diagnostic::new(format!(
                        "in '{config}': the override '{}' comes before '{}'",
                        before.text, child.text
                    ))
                    .at(&before.origin)
                    .label("overrides go to the end of the defaults list"),
                );
                return;
            }
            if child.is_override {
                last_override = Some(child);
                if interpolated {
                    self.problems.push(
                        Diagnostic::new(format!(
                            "in '{config}': a file that an interpolation selects cannot override \
                             groups ({})",
                            child.text
                        ))
                        .at(&child.origin),
                    );
                    return;
                }
                self.choices.add_override(config, child);
            }
        }
    }

    fn record(&mut self, item: &Item) {
        if let Err((key, earlier)) = self.choices.record(item) {
            self.conflicts.push(key.clone());
            let earlier = earlier.unwrap_or_else(|| "null".to_string());
            let name = item.name().unwrap_or("null");
            self.problems.push(
                Diagnostic::new(format!("multiple values for `{key}`: {name} and {earlier}"))
                    .at(&item.origin)
                    .note(format!(
                        "to replace the first, write `override {key}: {earlier}` in the defaults \
                         list, or {key}={earlier} on the command line"
                    )),
            );
        }
    }

    /// Resolves the interpolations in an item's option, over the choices made so far.
    fn interpolate(&self, item: &mut Item) -> Result<(), Diagnostic> {
        let mut known = Map::new();
        for (key, name) in &self.choices.known {
            let value = name.clone().map_or(Value::Null, Value::Str);
            known.insert(Key::from(key.as_str()), Node::built_in(value));
        }
        let root = Node::built_in(Value::Map(known));
        let text = match &item.what {
            What::Config(path) => path.clone(),
            _ => item.name().unwrap_or_default().to_string(),
        };
        let refuse = |why: &str| {
            let keys: Vec<&str> = self.choices.known.keys().map(String::as_str).collect();
            Diagnostic::new(format!("cannot resolve '{text}' in a defaults list: {why}"))
                .at(&item.origin)
                .note(format!("groups it may refer to: {}", keys.join(", ")))
        };
        let template = parse::template(&text).map_err(|error| refuse(&error.message))?;
        let resolver = Resolver::new(&root, self.environment);
        let at: Path = vec![Key::from("")];
        let found = resolver
            .template(&template, &at, &item.origin)
            .map_err(|failure| refuse(&failure.message))?;
        let node = resolver
            .peek(&found)
            .map_err(|failure| refuse(&failure.message))?;
        let Some(name) = node.as_str() else {
            return Err(refuse(&format!("it gives {}", node.describe())));
        };
        match &mut item.what {
            What::Config(path) => *path = name.to_string(),
            What::Group { choice, .. } => *choice = Selection::One(name.to_string()),
            What::Itself => {}
        }
        Ok(())
    }
}
