//! From a composed tree to typed configs.
//!
//! A [`Section`] is a part of a composition. [`Section::extract`] resolves it, checks it against
//! the schema of the type (all problems at once), and fills the type through figment's values, whose
//! errors say at which path they are. The nodes themselves know their origins.

use figment::value::{Dict, Value as Figure};
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::composition::Composition;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::interpolation::resolve::Missing;
use crate::origin::Origin;
use crate::schema::{self, Subject};
use crate::value::{Map, Node, Value};

/// A part of a composed configuration: a path, and what it configures.
#[derive(Clone)]
pub struct Section<'a> {
    composition: &'a Composition,
    path: String,
    subject: Option<String>,
}

impl Composition {
    /// The part at a dotted path; the empty path is the whole configuration.
    pub fn section(&self, path: &str) -> Section<'_> {
        Section {
            composition: self,
            path: path.to_string(),
            subject: None,
        }
    }

    /// Extracts the typed config at a dotted path.
    pub fn extract<T: DeserializeOwned + JsonSchema>(&self, path: &str) -> Result<T, Diagnostics> {
        self.section(path).extract()
    }
}

impl<'a> Section<'a> {
    /// Names what the section configures, for messages: ``optimizer `adamw.AdamW` ``.
    pub fn describe(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// The dotted path, empty for the whole configuration.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What it is a part of.
    pub fn composition(&self) -> &'a Composition {
        self.composition
    }

    /// The part below one key.
    pub fn section(&self, key: &str) -> Section<'a> {
        Section {
            composition: self.composition,
            path: schema::join(&self.path, key),
            subject: None,
        }
    }

    /// The node as composed, if there is one.
    pub fn node(&self) -> Option<&'a Node> {
        self.composition.get(&self.path)
    }

    /// A problem with this section that only the caller can see.
    pub fn error(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(message).at(&self.origin())
    }

    /// The section's text value, resolved: for `type` and other names.
    pub fn text(&self) -> Result<String, Diagnostics> {
        let node = self.resolved()?;
        match &node.value {
            Value::Str(text) if !node.is_missing() => Ok(text.clone()),
            _ if node.is_missing() || self.node().is_none() => Err(self
                .error(format!("`{}` must be given", self.path))
                .label(format!("give it as {}=VALUE", self.path))
                .into()),
            _ => Err(Diagnostic::new(format!("`{}` must be text", self.path))
                .at(&node.origin)
                .label(format!("this is {}", node.describe()))
                .into()),
        }
    }

    /// Checks the section against the schema of `T`, and extracts it. A section that is absent or
    /// null counts as an empty mapping.
    pub fn extract<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Diagnostics> {
        let schema = schema_for!(T);
        let node = self.checked(&schema)?;
        extract_from(&node, &schema, &self.path)
    }

    /// The section, resolved and checked against a schema.
    pub fn checked(&self, schema: &Schema) -> Result<Node, Diagnostics> {
        let node = self.resolved()?;
        let subject = Subject {
            name: self.subject.as_deref(),
            chosen_at: self.chosen_at(),
        };
        schema::check(&node, schema, &self.path, subject)?;
        Ok(node)
    }

    /// Where the key beside the section stands that chose what it configures.
    fn chosen_at(&self) -> Option<&'a Origin> {
        let around = self.path.strip_suffix(".kwargs")?;
        let chosen = ["type", "url"].map(|key| self.composition.get(&schema::join(around, key)));
        let chosen = chosen.into_iter().flatten().next()?;
        Some(&chosen.origin)
    }

    fn resolved(&self) -> Result<Node, Diagnostics> {
        let empty = || Ok(Node::new(Value::Map(Map::new()), self.origin()));
        match self.node() {
            None => empty(),
            Some(node) if node.is_null() => empty(),
            Some(_) if self.path.is_empty() => self.composition.resolve(Missing::Keep),
            Some(_) => self.composition.resolved(&self.path, Missing::Keep),
        }
    }

    /// Where the section, or the nearest part around it, was written.
    fn origin(&self) -> Origin {
        let mut path = self.path.as_str();
        loop {
            if let Some(node) = self.composition.get(path) {
                return node.origin.at_key();
            }
            match path.rsplit_once('.') {
                Some((parent, _)) => path = parent,
                None => return self.composition.tree().origin.clone(),
            }
        }
    }
}

fn extract_from<T: DeserializeOwned>(
    node: &Node,
    schema: &Schema,
    path: &str,
) -> Result<T, Diagnostics> {
    let value = figure(node, Some((schema.as_value(), schema.as_value())));
    value.deserialize().map_err(|error| {
        let mut problems = Diagnostics::new();
        for one in error {
            let here = one.path.join(".");
            let origin = node.get(&here).map_or(&node.origin, |node| &node.origin);
            let full = match (path, here.as_str()) {
                (path, "") => path.to_string(),
                (path, here) => schema::join(path, here),
            };
            problems.push(Diagnostic::new(format!("`{full}`: {}", one.kind)).at(origin));
        }
        problems
    })
}

/// A schema, and the root that its references start from.
type InSchema<'s> = Option<(&'s Json, &'s Json)>;

/// The value as figment knows it.
fn figure(node: &Node, schema: InSchema<'_>) -> Figure {
    match &node.value {
        Value::Null => Figure::from(figment::value::Empty::None),
        Value::Bool(value) => Figure::from(*value),
        Value::Int(value) => i64::try_from(*value)
            .map(Figure::from)
            .or_else(|_| u64::try_from(*value).map(Figure::from))
            .unwrap_or_else(|_| Figure::from(*value)),
        Value::Float(value) => Figure::from(*value),
        Value::Str(text) => Figure::from(text.as_str()),
        Value::List(items) => {
            let figures: Vec<Figure> = items
                .iter()
                .map(|item| figure(item, item_schema(schema)))
                .collect();
            Figure::from(figures)
        }
        // figment sorts the keys of a dictionary; pairs keep their order.
        Value::Map(map) if is_ordered(schema) => {
            let pairs: Vec<Figure> = map
                .iter()
                .map(|(key, child)| {
                    let value = figure(child, property(schema, key.as_str()));
                    Figure::from(vec![Figure::from(key.as_str()), value])
                })
                .collect();
            Figure::from(pairs)
        }
        Value::Map(map) => {
            let dict: Dict = map
                .iter()
                .map(|(key, child)| {
                    let value = figure(child, property(schema, key.as_str()));
                    (key.to_string(), value)
                })
                .collect();
            Figure::from(dict)
        }
    }
}

/// The schemas that a value may have: the alternatives and parts of a schema, references followed.
fn alternatives<'s>(schema: InSchema<'s>, depth: usize) -> Vec<&'s Json> {
    let Some((root, schema)) = schema else {
        return Vec::new();
    };
    let schema = schema::follow(root, schema);
    let mut all = vec![schema];
    if depth < 5
        && let Some(object) = schema.as_object()
    {
        for keyword in ["anyOf", "oneOf", "allOf"] {
            for part in schema::list(object, keyword) {
                all.extend(alternatives(Some((root, part)), depth + 1));
            }
        }
    }
    all
}

fn is_ordered(schema: InSchema<'_>) -> bool {
    alternatives(schema, 0)
        .iter()
        .any(|schema| schema.get(crate::ordered::MARK) == Some(&Json::Bool(true)))
}

fn property<'s>(schema: InSchema<'s>, key: &str) -> InSchema<'s> {
    let root = schema?.0;
    alternatives(schema, 0).into_iter().find_map(|schema| {
        let own = schema.get("properties").and_then(|own| own.get(key));
        own.or_else(|| schema.get("additionalProperties").filter(|o| o.is_object()))
            .map(|found| (root, found))
    })
}

fn item_schema(schema: InSchema<'_>) -> InSchema<'_> {
    let root = schema?.0;
    alternatives(schema, 0)
        .into_iter()
        .find_map(|schema| Some((root, schema.get("items")?)))
}
