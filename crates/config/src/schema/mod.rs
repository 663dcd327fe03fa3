//! Checks a resolved tree against a JSON schema, and reports all that is wrong with it.
//!
//! It knows what `schemars` writes for Rust types: references, options, enums, tagged enums,
//! flattened structs, ranges. serde would stop at the first problem and does not know lines.

mod options;
mod rules;

pub use options::key_options;
pub(crate) use rules::{follow, join, list};

use rules::{
    MAX_REFERENCES, accepts_kind, check_count, check_range, fits, has_tag_of, is_only_null,
    not_an_option, tag, text_options, type_name, types,
};
use std::sync::Arc;

use schemars::Schema;
use serde_json::{Map as Json, Value};

use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::origin::{Origin, Place};
use crate::value::{Key, Node, Value as Tree};

/// What a part of the configuration configures.
#[derive(Clone, Copy, Default)]
pub(crate) struct Subject<'a> {
    /// For messages: ``optimizer `adamw.AdamW` ``.
    pub(crate) name: Option<&'a str>,
    /// Where that was chosen, if a key beside the part has done it.
    pub(crate) chosen_at: Option<&'a Origin>,
}

/// Checks `node`, which stands at `path`.
pub(crate) fn check(
    node: &Node,
    schema: &Schema,
    path: &str,
    subject: Subject<'_>,
) -> Result<(), Diagnostics> {
    let root = schema.as_value();
    let checker = Checker { root, subject };
    let mut problems = Diagnostics::new();
    checker.check(node, root, path, &mut problems);
    problems.into_result(())
}

struct Checker<'a> {
    root: &'a Value,
    subject: Subject<'a>,
}

impl<'a> Checker<'a> {
    fn check(&self, node: &Node, schema: &'a Value, path: &str, problems: &mut Diagnostics) {
        if node.is_missing() {
            problems.push(
                Diagnostic::new(format!("`{path}` must be given"))
                    .at(&node.origin)
                    .label(format!("give it as {path}=VALUE")),
            );
            return;
        }
        let Some(schema) = follow(self.root, schema).as_object() else {
            return;
        };
        let before = problems.len();
        self.check_alternatives(node, schema, path, problems);
        for part in list(schema, "allOf") {
            self.check(node, part, path, problems);
        }
        if problems.len() > before {
            return;
        }
        if !self.check_type(node, schema, path, problems) {
            return;
        }
        self.check_options(node, schema, path, problems);
        match &node.value {
            Tree::Map(_) => self.check_mapping(node, schema, path, problems),
            Tree::List(items) => self.check_list(node, items, schema, path, problems),
            Tree::Int(_) | Tree::Float(_) => check_range(node, schema, path, problems),
            Tree::Str(text) => {
                let length = text.chars().count() as f64;
                check_count(
                    node,
                    length,
                    schema,
                    ["minLength", "maxLength"],
                    "characters",
                    path,
                    problems,
                );
            }
            Tree::Null | Tree::Bool(_) => {}
        }
    }

    /// `anyOf` and `oneOf`: the alternative that is meant is the one that fits best.
    fn check_alternatives(
        &self,
        node: &Node,
        schema: &'a Json<String, Value>,
        path: &str,
        problems: &mut Diagnostics,
    ) {
        for keyword in ["anyOf", "oneOf"] {
            let alternatives: Vec<&'a Value> = list(schema, keyword)
                .map(|alternative| follow(self.root, alternative))
                .collect();
            if alternatives.is_empty() {
                continue;
            }
            let mut attempts: Vec<(&Value, Diagnostics)> = alternatives
                .iter()
                .map(|alternative| {
                    let mut found = Diagnostics::new();
                    self.check(node, alternative, path, &mut found);
                    (*alternative, found)
                })
                .collect();
            if attempts.iter().any(|(_, found)| found.is_empty()) {
                continue;
            }
            if let Some(options) = text_options(&alternatives)
                && node.as_str().is_some()
            {
                problems.push(not_an_option(node, &options, path));
                continue;
            }
            if let Some(problem) = self.unknown_tag(node, &alternatives, path) {
                problems.push(problem);
                continue;
            }
            attempts.retain(|(alternative, _)| {
                !is_only_null(alternative) && has_tag_of(node, alternative)
            });
            // The kind that was written is more likely meant than the fewest problems.
            let best = attempts
                .into_iter()
                .min_by_key(|(alternative, found)| (!accepts_kind(node, alternative), found.len()));
            match best {
                Some((_, found)) => problems.extend(found),
                None => problems.push(
                    Diagnostic::new(format!("`{path}` has the wrong type"))
                        .at(&node.origin)
                        .label(format!("this is {}", node.describe())),
                ),
            }
        }
    }

    /// The tag of a tagged enum (`type: x`) that names none of the variants.
    fn unknown_tag(&self, node: &Node, alternatives: &[&Value], path: &str) -> Option<Diagnostic> {
        let map = node.as_map()?;
        let name = alternatives.iter().find_map(|alternative| {
            let (name, _) = tag(alternative)?;
            alternatives
                .iter()
                .all(|other| tag(other).is_none_or(|(other, _)| other == name))
                .then_some(name)
        })?;
        let options: Vec<&str> = alternatives
            .iter()
            .filter_map(|alternative| Some(tag(alternative)?.1))
            .collect();
        let given = map.get(name)?;
        if given.as_str().is_some_and(|text| options.contains(&text)) {
            return None;
        }
        Some(not_an_option(given, &options, &join(path, name)))
    }

    fn check_type(
        &self,
        node: &Node,
        schema: &Json<String, Value>,
        path: &str,
        problems: &mut Diagnostics,
    ) -> bool {
        let types = types(schema);
        if types.is_empty() || types.iter().any(|name| fits(node, name)) {
            return true;
        }
        let names: Vec<&str> = types.iter().map(|name| type_name(name)).collect();
        let mut problem = Diagnostic::new(format!("`{path}` must be {}", names.join(" or ")))
            .at(&node.origin)
            .label(format!("this is {}", node.describe()));
        problem = match &node.value {
            Tree::Float(value)
                if types.contains(&"integer") && value.fract() == 0.0 && value.abs() < 1e18 =>
            {
                problem.note(format!("write {}", *value as i64))
            }
            Tree::Int(_) | Tree::Float(_) | Tree::Bool(_) | Tree::Null
                if types.contains(&"string") =>
            {
                problem.note("put quotes around it if it is text")
            }
            Tree::Str(text)
                if types.contains(&"number")
                    && !matches!(node.origin.place, Place::Environment(_))
                    && crate::python::parse_float(text).is_some() =>
            {
                problem.note("a number takes no quotes")
            }
            _ => problem,
        };
        if let (Place::Environment(name), true) = (&node.origin.place, !types.contains(&"string")) {
            problem = problem.note(format!(
                "oc.env gives text; for other types, use ${{oc.decode:${{oc.env:{name}}}}}"
            ));
        }
        problems.push(problem);
        false
    }

    fn check_options(
        &self,
        node: &Node,
        schema: &Json<String, Value>,
        path: &str,
        problems: &mut Diagnostics,
    ) {
        let constant = schema.get("const");
        let options: Vec<&Value> = list(schema, "enum").chain(constant).collect();
        if options.is_empty() || options.iter().any(|option| **option == node.to_json()) {
            return;
        }
        let texts: Vec<String> = options
            .iter()
            .map(|option| {
                option
                    .as_str()
                    .map_or_else(|| option.to_string(), str::to_string)
            })
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        problems.push(not_an_option(node, &texts, path));
    }

    fn check_mapping(
        &self,
        node: &Node,
        schema: &'a Json<String, Value>,
        path: &str,
        problems: &mut Diagnostics,
    ) {
        let Some(map) = node.as_map() else { return };
        let mut properties = Vec::new();
        let mut others = Others::default();
        self.collect(node, schema, &mut properties, &mut others, 0);
        let own = schema.get("properties").and_then(Value::as_object);
        for (key, child) in map {
            let full = join(path, key.as_str());
            if let Some(property) = own.and_then(|own| own.get(key.as_str())) {
                self.check(child, property, &full, problems);
            } else if properties.contains(&key.as_str()) {
                // Checked with the part of the schema that has it.
            } else if let Some(other) = schema.get("additionalProperties").filter(|o| o.is_object())
            {
                self.check(child, other, &full, problems);
            } else if others.are_refused {
                problems.push(self.unknown_key(key, child, &properties, path));
            }
        }
        for required in list(schema, "required").filter_map(Value::as_str) {
            if !map.contains_key(required) {
                let place = self.place(path);
                problems.push(
                    Diagnostic::new(format!("missing key `{required}`{place}"))
                        .at(&node.origin.at_key())
                        .label(format!("give it as {}=VALUE", join(path, required))),
                );
            }
        }
    }

    /// The properties of a schema and of the parts it is made of.
    fn collect(
        &self,
        node: &Node,
        schema: &'a Json<String, Value>,
        properties: &mut Vec<&'a str>,
        others: &mut Others,
        depth: usize,
    ) {
        if depth > MAX_REFERENCES {
            return;
        }
        if let Some(own) = schema.get("properties").and_then(Value::as_object) {
            properties.extend(own.keys().map(String::as_str));
        }
        for keyword in ["additionalProperties", "unevaluatedProperties"] {
            others.are_refused |= schema.get(keyword) == Some(&Value::Bool(false));
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for part in list(schema, keyword) {
                let part = follow(self.root, part);
                if let Some(object) = part.as_object().filter(|_| has_tag_of(node, part)) {
                    self.collect(node, object, properties, &mut Others::default(), depth + 1);
                }
            }
        }
    }

    fn unknown_key(&self, key: &Key, child: &Node, known: &[&str], path: &str) -> Diagnostic {
        let place = self.place(path);
        let mut problem =
            Diagnostic::new(format!("unknown key `{key}`{place}")).at(&child.origin.at_key());
        if let Some(near) = nearest(key.as_str(), known.iter().copied()) {
            problem = problem.label(format!("did you mean `{near}`?"));
        }
        // The options of another choice, which a config has inherited, or left standing when it changed the choice.
        if let (Some(chosen_at), Place::File(layer)) = (self.subject.chosen_at, &child.origin.place)
            && !matches!(&chosen_at.place, Place::File(other) if Arc::ptr_eq(&other.file, &layer.file))
        {
            problem = problem.note(format!(
                "the choice is made {}, this option comes from {}: begin with a config that has no options, such as `base` \
                 (`defaults: [base, _self_]`), or remove it with ~{}",
                chosen_at.at(),
                layer.file.path,
                join(path, key.as_str()),
            ));
        }
        if known.is_empty() {
            problem.note("it takes no keys")
        } else {
            problem.note(format!("keys: {}", known.join(", ")))
        }
    }

    fn place(&self, path: &str) -> String {
        match self.subject.name {
            Some(subject) => format!(" for {subject}"),
            None if path.is_empty() => String::new(),
            None => format!(" in `{path}`"),
        }
    }

    fn check_list(
        &self,
        node: &Node,
        items: &[Node],
        schema: &'a Json<String, Value>,
        path: &str,
        problems: &mut Diagnostics,
    ) {
        let first: Vec<&'a Value> = list(schema, "prefixItems").collect();
        for (index, item) in items.iter().enumerate() {
            let item_schema = first.get(index).copied().or_else(|| schema.get("items"));
            if let Some(item_schema) = item_schema {
                self.check(item, item_schema, &join(path, &index.to_string()), problems);
            }
        }
        let length = items.len() as f64;
        check_count(
            node,
            length,
            schema,
            ["minItems", "maxItems"],
            "items",
            path,
            problems,
        );
    }
}

#[derive(Default)]
struct Others {
    are_refused: bool,
}
