//! Evaluates interpolations against a tree.
//!
//! Nothing is written back: [`Resolver::tree`] builds a resolved copy. All failures are collected,
//! each at the place of its interpolation. Cycles, also through containers, are failures.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::{Expression, Part, Reference, Step, Template, parse, resolvers};
use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::environment::Environment;
use crate::origin::Origin;
use crate::python;
use crate::value::{Key, KeyKind, Map, Node, Value};

/// Deepest nesting of one evaluation, through interpolations and containers together.
const MAX_NESTING: usize = 100;
/// The levels that one interpolation counts for; its evaluation takes more stack than a list.
const PER_REFERENCE: usize = 2;
/// Most interpolations that are evaluated for one tree: a few lines can ask for 2^100.
const MAX_EVALUATIONS: usize = 200_000;
/// Most values of a resolved tree.
const MAX_NODES: usize = 1_000_000;

/// Steps from the root. A list index is an integer key.
pub(crate) type Path = Vec<Key>;

/// Whether `???` may be left in a resolved tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Keep,
    Refuse,
}

/// Why an interpolation has no value.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub message: String,
    pub label: String,
    /// The path leads through something that is not a container.
    pub is_type: bool,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            label: String::new(),
            is_type: false,
        }
    }
}

/// What an interpolation refers to.
pub(crate) enum Found {
    /// A node of the tree.
    At(Path),
    /// A value that was made.
    New(Node),
}

pub(crate) struct Resolver<'a> {
    pub root: &'a Node,
    pub environment: &'a Environment,
    /// Nodes whose interpolation is being evaluated.
    active: RefCell<Vec<Path>>,
    /// Containers that are being copied because an interpolation refers to them.
    expanding: RefCell<Vec<Path>>,
    copied: Cell<usize>,
    nesting: Cell<usize>,
    evaluations: Cell<usize>,
    problems: RefCell<Diagnostics>,
    cycles: RefCell<Vec<Vec<String>>>,
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(root: &'a Node, environment: &'a Environment) -> Self {
        Resolver {
            root,
            environment,
            active: RefCell::default(),
            expanding: RefCell::default(),
            copied: Cell::new(0),
            nesting: Cell::new(0),
            evaluations: Cell::new(0),
            problems: RefCell::default(),
            cycles: RefCell::default(),
        }
    }

    /// A resolved copy of the node at `path`.
    pub(crate) fn tree(self, path: &Path, missing: Missing) -> Result<Node, Diagnostics> {
        let Some(node) = self.node(path) else {
            let name = dotted(path);
            return Err(Diagnostic::new(format!("there is no key `{name}`")).into());
        };
        let resolved = self.copy(node, &mut path.clone(), missing);
        self.finish(resolved)
    }

    /// A resolved copy of the root without one of its keys.
    pub(crate) fn without(self, key: &str, missing: Missing) -> Result<Node, Diagnostics> {
        let mut copy = Map::new();
        for (name, child) in self.root.as_map().into_iter().flatten() {
            if name.as_str() != key {
                let resolved = self.copy(child, &mut vec![name.clone()], missing);
                copy.insert(name.clone(), resolved);
            }
        }
        let root = Node::new(Value::Map(copy), self.root.origin.clone());
        self.finish(root)
    }

    fn finish(self, resolved: Node) -> Result<Node, Diagnostics> {
        self.problems.into_inner().into_result(resolved)
    }

    /// The value of the node at `path`, one interpolation resolved, or why there is none.
    pub(crate) fn dereference(&self, path: &Path) -> Result<Found, Failure> {
        match self.node(path) {
            Some(node) if node.is_interpolation() => self.evaluate(node, path),
            _ => Ok(Found::At(path.clone())),
        }
    }

    pub(crate) fn node(&self, path: &Path) -> Option<&'a Node> {
        path.iter().try_fold(self.root, step)
    }

    fn copy(&self, node: &Node, path: &mut Path, missing: Missing) -> Node {
        self.copied.set(self.copied.get() + 1);
        let too_much = if self.copied.get() >= MAX_NODES {
            // Said once: what follows is left out without a word.
            let is_first = self.copied.get() == MAX_NODES;
            Some(is_first.then(|| format!("more than {MAX_NODES} values after interpolation")))
        } else if self.nesting.get() >= MAX_NESTING {
            Some(Some(format!("nested deeper than {MAX_NESTING} levels")))
        } else {
            None
        };
        if let Some(message) = too_much {
            if let Some(message) = message {
                let problem = Diagnostic::new(message).at(&node.origin);
                self.problems.borrow_mut().push(problem);
            }
            return Node::new(Value::Null, node.origin.clone());
        }
        self.nesting.set(self.nesting.get() + 1);
        let copy = self.copy_value(node, path, missing);
        self.nesting.set(self.nesting.get() - 1);
        copy
    }

    fn copy_value(&self, node: &Node, path: &mut Path, missing: Missing) -> Node {
        let value = match &node.value {
            Value::List(items) => Value::List(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        path.push(Key::new(index.to_string(), KeyKind::Integer));
                        let copy = self.copy(item, path, missing);
                        path.pop();
                        copy
                    })
                    .collect(),
            ),
            Value::Map(map) => Value::Map(
                map.iter()
                    .map(|(key, item)| {
                        path.push(key.clone());
                        let copy = self.copy(item, path, missing);
                        path.pop();
                        (key.clone(), copy)
                    })
                    .collect::<Map>(),
            ),
            Value::Str(_) if node.is_interpolation() => {
                return self.copy_found(node, path, missing);
            }
            Value::Str(_) if node.is_missing() && missing == Missing::Refuse => {
                let name = dotted(path);
                self.problems.borrow_mut().push(
                    Diagnostic::new(format!("`{name}` must be given"))
                        .at(&node.origin)
                        .label(format!("give it as {name}=VALUE")),
                );
                node.value.clone()
            }
            scalar => scalar.clone(),
        };
        Node::new(value, node.origin.clone())
    }

    /// A copy of what the interpolation in `node` refers to.
    fn copy_found(&self, node: &Node, path: &Path, missing: Missing) -> Node {
        let failed = |failure: Failure| {
            self.report(node, path, failure);
            Node::new(Value::Null, node.origin.clone())
        };
        match self.evaluate(node, path) {
            Err(failure) => failed(failure),
            Ok(Found::New(mut made)) => {
                made.origin.key = node.origin.key;
                made
            }
            Ok(Found::At(target)) => {
                let Some(found) = self.node(&target) else {
                    return failed(Failure::new("the key is gone"));
                };
                if self.expanding.borrow().contains(&target) {
                    return failed(self.cycle(&target));
                }
                self.expanding.borrow_mut().push(target.clone());
                let mut copy = self.copy(found, &mut target.clone(), missing);
                self.expanding.borrow_mut().pop();
                copy.origin.read_at = Some(Arc::new(node.origin.clone()));
                copy
            }
        }
    }

    fn report(&self, node: &Node, path: &Path, failure: Failure) {
        if failure.message.is_empty() {
            return;
        }
        let text = node.brief();
        let mut diagnostic = Diagnostic::new(format!(
            "cannot resolve `{text}` in `{}`: {}",
            dotted(path),
            failure.message
        ))
        .at(&node.origin);
        if !failure.label.is_empty() {
            diagnostic = diagnostic.label(failure.label);
        }
        self.problems.borrow_mut().push(diagnostic);
    }

    fn cycle(&self, back_to: &Path) -> Failure {
        let mut names: Vec<String> = Vec::new();
        for path in self
            .active
            .borrow()
            .iter()
            .chain(self.expanding.borrow().iter())
        {
            names.push(dotted(path));
        }
        names.push(dotted(back_to));
        let mut members = names.clone();
        members.sort();
        members.dedup();
        // Every member of a cycle leads into it; one report is enough.
        let mut cycles = self.cycles.borrow_mut();
        if cycles.contains(&members) {
            return Failure::new("");
        }
        cycles.push(members);
        Failure::new(format!("a cycle: {}", names.join(" -> ")))
    }

    /// Evaluates the interpolation held by `node`, which stands at `path`.
    fn evaluate(&self, node: &Node, path: &Path) -> Result<Found, Failure> {
        let text = node.as_str().unwrap_or_default();
        let template = parse::template(text).map_err(|error| Failure::new(error.message))?;
        if self.active.borrow().contains(path) {
            return Err(self.cycle(path));
        }
        self.active.borrow_mut().push(path.clone());
        let found = self.template(&template, path, &node.origin);
        self.active.borrow_mut().pop();
        found
    }

    /// Counts one `${...}` more, and its nesting.
    fn enter_reference(&self) -> Result<(), Failure> {
        self.evaluations.set(self.evaluations.get() + 1);
        if self.evaluations.get() > MAX_EVALUATIONS {
            return Err(Failure::new(format!(
                "more than {MAX_EVALUATIONS} interpolations are evaluated"
            )));
        }
        if self.nesting.get() >= MAX_NESTING {
            return Err(Failure::new(format!(
                "a chain of more than {} interpolations",
                MAX_NESTING / PER_REFERENCE
            )));
        }
        self.nesting.set(self.nesting.get() + PER_REFERENCE);
        Ok(())
    }

    pub(crate) fn template(
        &self,
        template: &Template,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        if let [Part::Reference(reference)] = &template.0[..] {
            return self.reference(reference, path, site);
        }
        let text = self.joined(&template.0, path, site)?;
        Ok(Found::New(Node::new(Value::Str(text), site.clone())))
    }

    fn joined(&self, parts: &[Part], path: &Path, site: &Origin) -> Result<String, Failure> {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Reference(reference) => {
                    let found = self.reference(reference, path, site)?;
                    text.push_str(&python::display(self.peek(&found)?));
                }
            }
            if text.len() > 1 << 20 {
                return Err(Failure::new("a text of more than a megabyte"));
            }
        }
        Ok(text)
    }

    /// The node that was found, not copied.
    pub(crate) fn peek<'f>(&'f self, found: &'f Found) -> Result<&'f Node, Failure> {
        match found {
            Found::New(node) => Ok(node),
            Found::At(path) => self
                .node(path)
                .ok_or_else(|| Failure::new("the key is gone")),
        }
    }

    fn reference(
        &self,
        reference: &Reference,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        self.enter_reference()?;
        let found = self.referenced(reference, path, site);
        self.nesting.set(self.nesting.get() - PER_REFERENCE);
        found
    }

    fn referenced(
        &self,
        reference: &Reference,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        match reference {
            Reference::Key { dots, steps } => {
                let key = format!("{}{}", ".".repeat(*dots), self.name(steps, path, site)?);
                let found = self.select(&key, path, SelectMissing::Refuse)?;
                let Some(found) = found else {
                    return Err(self.not_found(&key, path));
                };
                if let Found::At(target) = &found
                    && path.len() > target.len()
                    && path.starts_with(target)
                {
                    return Err(Failure::new("it refers to what it is part of"));
                }
                Ok(found)
            }
            Reference::Call { name, arguments } => {
                let name = self.name(name, path, site)?;
                let arguments = arguments
                    .iter()
                    .map(|argument| self.expression(argument, path, site))
                    .collect::<Result<Vec<Node>, _>>()?;
                resolvers::call(self, &name, arguments, path, site)
            }
        }
    }

    fn name(&self, steps: &[Step], path: &Path, site: &Origin) -> Result<String, Failure> {
        let mut names = Vec::new();
        for step in steps {
            names.push(match step {
                Step::Name(name) => name.clone(),
                Step::Reference(inner) => {
                    let found = self.reference(inner, path, site)?;
                    let node = self.peek(&found)?;
                    match node.as_str() {
                        Some(text) => text.to_string(),
                        None => {
                            return Err(Failure::new(format!(
                                "a part of a key must be text, not {}",
                                node.describe()
                            )));
                        }
                    }
                }
            });
        }
        Ok(names.join("."))
    }

    pub(crate) fn expression(
        &self,
        expression: &Expression,
        path: &Path,
        site: &Origin,
    ) -> Result<Node, Failure> {
        let value = match expression {
            Expression::Null => Value::Null,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Int(value) => Value::Int(*value),
            Expression::Float(value) => Value::Float(*value),
            Expression::Text(text) => Value::Str(text.clone()),
            Expression::Joined(parts) => Value::Str(self.joined(parts, path, site)?),
            Expression::Reference(reference) => {
                return match self.reference(reference, path, site)? {
                    Found::New(node) => Ok(node),
                    Found::At(target) => self.resolved_copy(&target),
                };
            }
            Expression::List(items) => Value::List(
                items
                    .iter()
                    .map(|item| self.expression(item, path, site))
                    .collect::<Result<_, _>>()?,
            ),
            Expression::Dict(pairs) => {
                let mut map = Map::new();
                for (key, item) in pairs {
                    map.insert(key.clone(), self.expression(item, path, site)?);
                }
                Value::Map(map)
            }
        };
        Ok(Node::new(value, site.clone()))
    }

    /// A copy of the node at `path` with everything in it resolved.
    pub(crate) fn resolved_copy(&self, path: &Path) -> Result<Node, Failure> {
        let node = self
            .node(path)
            .ok_or_else(|| Failure::new("the key is gone"))?;
        if self.expanding.borrow().contains(path) {
            return Err(self.cycle(path));
        }
        self.expanding.borrow_mut().push(path.clone());
        let copy = self.copy(node, &mut path.clone(), Missing::Keep);
        self.expanding.borrow_mut().pop();
        Ok(copy)
    }

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
    fn not_found(&self, key: &str, path: &Path) -> Failure {
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

fn step<'n>(node: &'n Node, key: &Key) -> Option<&'n Node> {
    match &node.value {
        Value::Map(map) => map.get(key),
        Value::List(items) => items.get(key.as_str().parse::<usize>().ok()?),
        _ => None,
    }
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

/// A path as the user writes it.
pub(crate) fn dotted(path: &[Key]) -> String {
    let names: Vec<&str> = path.iter().map(Key::as_str).collect();
    names.join(".")
}
