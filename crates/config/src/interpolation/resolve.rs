//! A resolved copy of a tree.
//!
//! Nothing is written back into the tree itself. All failures are collected, each at the place of
//! its interpolation. Cycles, also through containers, are failures, and so is more than the
//! limits below allow.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::environment::Environment;
use crate::value::{Key, KeyKind, Map, Node, Value};

/// Deepest nesting of one evaluation, through interpolations and containers together.
pub(super) const MAX_NESTING: usize = 100;
/// The levels that one interpolation counts for; its evaluation takes more stack than a list.
pub(super) const PER_REFERENCE: usize = 2;
/// Most interpolations that are evaluated for one tree: a few lines can ask for 2^100.
pub(super) const MAX_EVALUATIONS: usize = 100_000;
/// Most values of a resolved tree.
const MAX_NODES: usize = 1_000_000;

/// Steps from the root. A list index is an integer key.
pub(crate) type Path = Vec<Key>;

/// Whether `???` may be left in a resolved tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It stays in the tree.
    Keep,
    /// It is an error, at the place where it stands.
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
    pub(super) active: RefCell<Vec<Path>>,
    /// Containers that are being copied because an interpolation refers to them.
    pub(super) expanding: RefCell<Vec<Path>>,
    copied: Cell<usize>,
    pub(super) nesting: Cell<usize>,
    pub(super) evaluations: Cell<usize>,
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

    pub(super) fn copy(&self, node: &Node, path: &mut Path, missing: Missing) -> Node {
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

    pub(super) fn cycle(&self, back_to: &Path) -> Failure {
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
}

pub(super) fn step<'n>(node: &'n Node, key: &Key) -> Option<&'n Node> {
    match &node.value {
        Value::Map(map) => map.get(key),
        Value::List(items) => items.get(key.as_str().parse::<usize>().ok()?),
        _ => None,
    }
}

/// A path as the user writes it.
pub(crate) fn dotted(path: &[Key]) -> String {
    let names: Vec<&str> = path.iter().map(Key::as_str).collect();
    names.join(".")
}
