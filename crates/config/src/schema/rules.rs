//! Questions about one schema: where it refers to, which kinds and options it takes, its bounds.

use serde_json::{Map as Json, Value};

use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::value::{Node, Value as Tree};

/// Longest chain of `$ref`.
pub(super) const MAX_REFERENCES: usize = 20;

/// The schema that a `$ref` leads to.
pub(crate) fn follow<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let mut here = schema;
    for _ in 0..MAX_REFERENCES {
        let Some(reference) = here.get("$ref").and_then(Value::as_str) else {
            break;
        };
        let Some(next) = root.pointer(reference.trim_start_matches('#')) else {
            break;
        };
        here = next;
    }
    here
}

pub(crate) fn list<'s>(
    schema: &'s Json<String, Value>,
    keyword: &str,
) -> impl Iterator<Item = &'s Value> + use<'s> {
    schema
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub(super) fn types(schema: &Json<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn fits(node: &Node, name: &str) -> bool {
    match &node.value {
        Tree::Null => name == "null",
        Tree::Bool(_) => name == "boolean",
        Tree::Int(_) => matches!(name, "integer" | "number"),
        Tree::Float(_) => name == "number",
        Tree::Str(_) => name == "string",
        Tree::List(_) => name == "array",
        Tree::Map(_) => name == "object",
    }
}

pub(super) fn type_name(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "integer" => "an integer",
        "number" => "a number",
        "string" => "text",
        "array" => "a list",
        "object" => "a mapping",
        other => other,
    }
}

pub(super) fn accepts_kind(node: &Node, schema: &Value) -> bool {
    schema.as_object().is_some_and(|schema| {
        let types = types(schema);
        types.is_empty() || types.iter().any(|name| fits(node, name))
    })
}

pub(super) fn is_only_null(schema: &Value) -> bool {
    schema.get("type") == Some(&Value::from("null"))
}

/// The property that must have one value: the tag of a variant.
pub(super) fn tag(schema: &Value) -> Option<(&str, &str)> {
    let properties = schema.get("properties")?.as_object()?;
    properties
        .iter()
        .find_map(|(name, property)| Some((name.as_str(), property.get("const")?.as_str()?)))
}

pub(super) fn has_tag_of(node: &Node, schema: &Value) -> bool {
    let Some((name, value)) = tag(schema) else {
        return true;
    };
    match node.as_map().and_then(|map| map.get(name)) {
        Some(given) => given.as_str() == Some(value),
        None => true,
    }
}

/// All options, if the alternatives are nothing but texts.
pub(super) fn text_options<'s>(alternatives: &[&'s Value]) -> Option<Vec<&'s str>> {
    let mut options = Vec::new();
    for alternative in alternatives.iter().filter(|schema| !is_only_null(schema)) {
        let object = alternative.as_object()?;
        let before = options.len();
        options.extend(object.get("const").and_then(Value::as_str));
        options.extend(list(object, "enum").filter_map(Value::as_str));
        if options.len() == before {
            return None;
        }
    }
    Some(options)
}

pub(super) fn not_an_option(node: &Node, options: &[&str], path: &str) -> Diagnostic {
    let problem = Diagnostic::new(format!("`{path}` cannot be {}", node.describe()))
        .at(&node.origin)
        .note(format!("options: {}", options.join(", ")));
    match nearest(node.as_str().unwrap_or_default(), options.iter().copied()) {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None => problem,
    }
}

pub(super) fn check_range(
    node: &Node,
    schema: &Json<String, Value>,
    path: &str,
    problems: &mut Diagnostics,
) {
    let value = match node.value {
        Tree::Int(value) => value as f64,
        Tree::Float(value) => value,
        _ => return,
    };
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let broken = [
        bound("minimum")
            .filter(|b| value < *b)
            .map(|b| ("at least", b)),
        bound("maximum")
            .filter(|b| value > *b)
            .map(|b| ("at most", b)),
        bound("exclusiveMinimum")
            .filter(|b| value <= *b)
            .map(|b| ("more than", b)),
        bound("exclusiveMaximum")
            .filter(|b| value >= *b)
            .map(|b| ("less than", b)),
    ];
    let nan = value.is_nan()
        && schema
            .keys()
            .any(|key| key.to_lowercase().contains("minimum"));
    if let Some((relation, bound)) = broken.into_iter().flatten().next() {
        problems.push(
            Diagnostic::new(format!("`{path}` must be {relation} {bound}"))
                .at(&node.origin)
                .label(format!("this is {}", node.describe())),
        );
    } else if nan {
        problems.push(Diagnostic::new(format!("`{path}` must be a number")).at(&node.origin));
    }
}

pub(super) fn check_count(
    node: &Node,
    count: f64,
    schema: &Json<String, Value>,
    [least, most]: [&str; 2],
    unit: &str,
    path: &str,
    problems: &mut Diagnostics,
) {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let (least, most) = (bound(least), bound(most));
    let wanted = match (least, most) {
        (Some(least), Some(most)) if least == most && count != least => format!("{least} {unit}"),
        (Some(least), _) if count < least => format!("at least {least} {unit}"),
        (_, Some(most)) if count > most => format!("at most {most} {unit}"),
        _ => return,
    };
    problems.push(
        Diagnostic::new(format!("`{path}` must have {wanted}"))
            .at(&node.origin)
            .label(format!("this has {count}")),
    );
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}.{name}")
    }
}
