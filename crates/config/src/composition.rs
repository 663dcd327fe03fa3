//! A composed configuration: its tree, and where everything in it came from.

use indexmap::IndexMap;

use crate::defaults::tree::TreeNode;
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::grammar::Override;
use crate::hydra;
use crate::interpolation::resolve::{Missing, Path, Resolver};
use crate::repository::Repository;
use crate::value::{Key, KeyKind, Node, Value};

/// One file of the final defaults list, in merge order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedFile {
    /// Its name in the search path, e.g. `model/qwen2`.
    pub config: String,
    /// The package its content went to; empty for the root.
    pub package: String,
    /// The config whose defaults list brought it in.
    pub parent: Option<String>,
    /// Stands for the `_self_` of its own list.
    pub is_self: bool,
    /// It is the config that composition began with.
    pub is_primary: bool,
}

/// A composed configuration.
pub struct Composition {
    root: Node,
    pub(crate) environment: Environment,
    overrides: Vec<Override>,
    choices: IndexMap<String, Option<String>>,
    files: Vec<MergedFile>,
    pub(crate) roots: Vec<TreeNode>,
    pub(crate) repository: Repository,
}

impl Composition {
    pub(crate) fn new(
        root: Node,
        environment: Environment,
        overrides: Vec<Override>,
        choices: IndexMap<String, Option<String>>,
        files: Vec<MergedFile>,
        roots: Vec<TreeNode>,
        repository: Repository,
    ) -> Self {
        Composition {
            root,
            environment,
            overrides,
            choices,
            files,
            roots,
            repository,
        }
    }

    /// The tree as composed, interpolations as written, with the node `hydra`.
    pub fn tree(&self) -> &Node {
        &self.root
    }

    /// The node at a dotted path, as composed.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.root.get(path)
    }

    /// The node at a dotted path with everything in it resolved.
    pub fn resolved(&self, path: &str, missing: Missing) -> Result<Node, Diagnostics> {
        Resolver::new(&self.root, &self.environment).tree(&as_path(&self.root, path), missing)
    }

    /// The whole configuration resolved, without the node `hydra`.
    pub fn resolve(&self, missing: Missing) -> Result<Node, Diagnostics> {
        Resolver::new(&self.root, &self.environment).without("hydra", missing)
    }

    /// The configuration as composed, without the node `hydra`: what `config.yaml` records.
    pub fn job(&self) -> Node {
        let mut job = self.root.clone();
        if let Value::Map(map) = &mut job.value {
            map.shift_remove("hydra");
        }
        job
    }

    /// Sets a value from the program, for what is known only after composition
    /// (`hydra.runtime.output_dir`, `hydra.job.num`).
    pub fn set(&mut self, path: &str, value: Value) {
        hydra::set(&mut self.root, path, value);
    }

    /// Takes a value out of the tree, for what the program has dealt with before the tree is
    /// checked. Nothing happens if there is none.
    pub fn remove(&mut self, path: &str) -> Option<Node> {
        let (parents, key) = match path.rsplit_once('.') {
            Some((parents, key)) => (parents.split('.').collect(), key),
            None => (Vec::new(), path),
        };
        let mut steps = parents.into_iter();
        let parent = steps.try_fold(&mut self.root, |node, step| node.child_mut(step))?;
        match &mut parent.value {
            Value::Map(map) => map.shift_remove(key),
            _ => None,
        }
    }

    /// The arguments that are not about Hydra's settings, as the user wrote them.
    pub fn overrides(&self) -> Vec<&str> {
        let task = self.overrides.iter().filter(|given| !given.is_hydra());
        task.map(|given| &*given.text).collect()
    }

    /// What was chosen for each group, by override key (`model`, `model@teacher`).
    pub fn choices(&self) -> &IndexMap<String, Option<String>> {
        &self.choices
    }

    /// The files in merge order: the final defaults list.
    pub fn files(&self) -> &[MergedFile] {
        &self.files
    }

    /// What the user should know although it is not an error.
    pub fn warnings(&self) -> Vec<String> {
        self.environment.warnings()
    }
}

/// A dotted path as steps; numbers are indices where the tree has a list.
pub(crate) fn as_path(root: &Node, path: &str) -> Path {
    let mut steps = Path::new();
    let mut here = Some(root);
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let is_list = here.is_some_and(|node| node.as_list().is_some());
        let kind = if is_list {
            KeyKind::Integer
        } else {
            KeyKind::Text
        };
        steps.push(Key::new(name, kind));
        here = here.and_then(|node| node.child(name));
    }
    steps
}
