//! Reads TOML into the same nodes as YAML: the two may be mixed in one tree.
//!
//! `defaults` is an array of texts and one-key tables. A package is given by the same comment
//! header as in YAML, or by a top-level `package = "..."`. Dates are text. Null has no TOML form.

use std::sync::Arc;

use toml_edit::{Document, Item, Table, Value as Toml};

use crate::diagnostic::Diagnostic;
use crate::origin::{Layer, Origin, Span};
use crate::value::{Key, Map, Node, Value};

pub(crate) fn read(layer: &Arc<Layer>) -> Result<Node, Diagnostic> {
    let text = layer.file.text.as_str();
    let document = Document::parse(text).map_err(|error| {
        let range = error.span().unwrap_or(0..1);
        Diagnostic::new(format!(
            "cannot read {}: it is not valid TOML",
            layer.file.path
        ))
        .at(&Origin::file(layer, Span::new(range.start, range.end)))
        .label(error.message())
    })?;
    Ok(table(document.as_table(), layer))
}

fn span(range: Option<std::ops::Range<usize>>) -> Span {
    range.map_or_else(Span::default, |range| Span::new(range.start, range.end))
}

fn table(table: &Table, layer: &Arc<Layer>) -> Node {
    let mut map = Map::new();
    for (name, item) in table.iter() {
        if let Some(mut node) = item_node(item, layer) {
            node.origin.key = table.key(name).map(|key| span(key.span()));
            map.insert(Key::from(name), node);
        }
    }
    Node::new(Value::Map(map), Origin::file(layer, span(table.span())))
}

fn item_node(item: &Item, layer: &Arc<Layer>) -> Option<Node> {
    match item {
        Item::None => None,
        Item::Value(toml) => Some(value(toml, layer)),
        Item::Table(inner) => Some(table(inner, layer)),
        Item::ArrayOfTables(tables) => {
            let items = tables.iter().map(|inner| table(inner, layer)).collect();
            Some(Node::new(
                Value::List(items),
                Origin::file(layer, span(tables.span())),
            ))
        }
    }
}

fn value(toml: &Toml, layer: &Arc<Layer>) -> Node {
    let value = match toml {
        Toml::String(text) => Value::Str(text.value().clone()),
        Toml::Integer(integer) => Value::Int(i128::from(*integer.value())),
        Toml::Float(float) => Value::Float(*float.value()),
        Toml::Boolean(boolean) => Value::Bool(*boolean.value()),
        Toml::Datetime(date) => Value::Str(date.value().to_string()),
        Toml::Array(items) => Value::List(items.iter().map(|item| value(item, layer)).collect()),
        Toml::InlineTable(inner) => {
            let mut map = Map::new();
            for (name, item) in inner.iter() {
                let mut node = self::value(item, layer);
                node.origin.key = inner.key(name).map(|key| span(key.span()));
                map.insert(Key::from(name), node);
            }
            Value::Map(map)
        }
    };
    Node::new(value, Origin::file(layer, span(toml.span())))
}
