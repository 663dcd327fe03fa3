//! Writes a tree as YAML and as JSON.
//!
//! The YAML is in block style with keys in their order, as Hydra writes `.hydra/config.yaml`;
//! reading it back gives the same tree.

use serde_json::{Map as JsonMap, Value as Json};

use super::scalar;
use crate::python;
use crate::value::{Key, KeyKind, Node, Value};

/// Block-style YAML. An empty mapping is `{}`.
pub(crate) fn to_yaml(node: &Node) -> String {
    let mut out = String::new();
    match &node.value {
        Value::Map(map) if !map.is_empty() => block(node, 0, &mut out),
        Value::List(items) if !items.is_empty() => block(node, 0, &mut out),
        _ => {
            scalar_to(node, 0, &mut out);
            out.push('\n');
        }
    }
    out
}

fn block(node: &Node, indent: usize, out: &mut String) {
    match &node.value {
        Value::Map(map) => {
            for (key, child) in map {
                pad(indent, out);
                out.push_str(&key_text(key));
                out.push(':');
                if is_block(child) {
                    out.push('\n');
                    // A list stands at the indent of its key.
                    let deeper = if child.as_list().is_some() { 0 } else { 2 };
                    block(child, indent + deeper, out);
                } else {
                    out.push(' ');
                    scalar_to(child, indent, out);
                    out.push('\n');
                }
            }
        }
        Value::List(items) => {
            for item in items {
                pad(indent, out);
                out.push_str("- ");
                if is_block(item) {
                    let start = out.len();
                    block(item, indent + 2, out);
                    // The first line continues the one with the dash.
                    out.replace_range(start..start + indent + 2, "");
                } else {
                    scalar_to(item, indent, out);
                    out.push('\n');
                }
            }
        }
        _ => {}
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn is_block(node: &Node) -> bool {
    match &node.value {
        Value::Map(map) => !map.is_empty(),
        Value::List(items) => !items.is_empty(),
        _ => false,
    }
}

fn scalar_to(node: &Node, indent: usize, out: &mut String) {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&float(*value)),
        Value::Str(text) => text_to(text, indent, out),
        Value::List(_) => out.push_str("[]"),
        Value::Map(_) => out.push_str("{}"),
    }
}

fn float(value: f64) -> String {
    match python::float(value).as_str() {
        "inf" => ".inf".to_string(),
        "-inf" => "-.inf".to_string(),
        "nan" => ".nan".to_string(),
        // PyYAML adds the point, without which its own reader would take it for text.
        text if text.contains('e') && !text.contains('.') => text.replace('e', ".0e"),
        text => text.to_string(),
    }
}

fn key_text(key: &Key) -> String {
    match key.kind() {
        KeyKind::Text => {
            let mut out = String::new();
            if key.as_str().contains('\n') {
                double_quoted(key.as_str(), &mut out);
            } else {
                text_to(key.as_str(), 0, &mut out);
            }
            out
        }
        KeyKind::Float => key.as_str().parse().map_or_else(|_| key.to_string(), float),
        _ => key.to_string(),
    }
}

fn text_to(text: &str, indent: usize, out: &mut String) {
    if text.contains(|c: char| c.is_control() && c != '\n') || text.contains('\u{feff}') {
        double_quoted(text, out);
    } else if text.contains('\n') {
        if is_literal(text) && indent < 40 {
            literal(text, indent, out);
        } else {
            double_quoted(text, out);
        }
    } else if can_be_plain(text) {
        out.push_str(text);
    } else {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }
}

fn double_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || c == '\u{feff}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether a block scalar holds the text exactly.
fn is_literal(text: &str) -> bool {
    !text.starts_with([' ', '\n', '\t'])
        && text.lines().all(|line| !line.ends_with([' ', '\t']))
        && !text.ends_with("\n\n")
}

fn literal(text: &str, indent: usize, out: &mut String) {
    out.push('|');
    if !text.ends_with('\n') {
        out.push('-');
    }
    for line in text.lines() {
        out.push('\n');
        if !line.is_empty() {
            pad(indent + 2, out);
            out.push_str(line);
        }
    }
}

fn can_be_plain(text: &str) -> bool {
    let starts_badly = text.starts_with([
        '-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@',
        '`', ' ',
    ]);
    let dash_word = text.starts_with('-') && text.len() > 1 && !text.starts_with("- ");
    let is_dashes = text.starts_with("---") || text.starts_with("...");
    scalar::is_plain_text(text)
        && (!starts_badly || dash_word)
        && !is_dashes
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
}

/// JSON. Infinities and NaN, which JSON lacks, become the texts `inf`, `-inf` and `nan`; integers
/// beyond 64 bits become floats.
pub(crate) fn to_json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => i64::try_from(*value)
            .map(Json::from)
            .or_else(|_| u64::try_from(*value).map(Json::from))
            .unwrap_or_else(|_| Json::from(*value as f64)),
        Value::Float(value) if value.is_finite() => Json::from(*value),
        Value::Float(value) => Json::from(python::float(*value)),
        Value::Str(text) => Json::from(text.as_str()),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(map) => Json::Object(
            map.iter()
                .map(|(key, child)| (key.to_string(), to_json(child)))
                .collect::<JsonMap<_, _>>(),
        ),
    }
}

impl Node {
    /// Block-style YAML that reads back as the same tree.
    pub fn to_yaml(&self) -> String {
        to_yaml(self)
    }

    /// As JSON, interpolations as they are written.
    pub fn to_json(&self) -> Json {
        to_json(self)
    }
}
