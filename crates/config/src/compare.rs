//! Reading a configuration that a run has recorded, and comparing two of them.

use std::path::Path;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::origin::{Layer, SourceFile};
use crate::schema::join;
use crate::value::{Node, Value};
use crate::{toml, yaml};

/// A key in which two configurations differ. Absent on one side means that the key is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The dotted path of the key.
    pub path: String,
    /// What the first has there, if it has.
    pub left: Option<Node>,
    /// What the second has there, if it has.
    pub right: Option<Node>,
}

impl Node {
    /// Reads one YAML or TOML file as it stands: its `defaults` are values like any other.
    pub fn read(path: &Path) -> Result<Node, Diagnostic> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Diagnostic::new(format!("cannot read {shown}: {error}")))?;
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        let layer = Arc::new(Layer {
            file: Arc::new(SourceFile { path: shown, text }),
            chosen_by: None,
        });
        if is_toml {
            toml::read(&layer)
        } else {
            yaml::read(&layer)
        }
    }

    /// Where two trees differ, key by key, in the order of the left one. Lists are compared item
    /// by item if they are of one length, and as a whole otherwise.
    pub fn differences(&self, other: &Node) -> Vec<Difference> {
        let mut found = Vec::new();
        collect(Some(self), Some(other), "", &mut found);
        found
    }
}

fn collect(left: Option<&Node>, right: Option<&Node>, path: &str, found: &mut Vec<Difference>) {
    match (left, right) {
        (Some(a), Some(b)) if a == b => {}
        (
            Some(Node {
                value: Value::Map(a),
                ..
            }),
            Some(Node {
                value: Value::Map(b),
                ..
            }),
        ) => {
            for (key, child) in a {
                collect(Some(child), b.get(key), &join(path, key.as_str()), found);
            }
            for (key, child) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                collect(None, Some(child), &join(path, key.as_str()), found);
            }
        }
        (
            Some(Node {
                value: Value::List(a),
                ..
            }),
            Some(Node {
                value: Value::List(b),
                ..
            }),
        ) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                collect(Some(a), Some(b), &join(path, &index.to_string()), found);
            }
        }
        _ => found.push(Difference {
            path: path.to_string(),
            left: left.cloned(),
            right: right.cloned(),
        }),
    }
}
