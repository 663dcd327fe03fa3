//! `docs/config.schema.json`: one JSON schema of a whole resolved configuration, plug-ins included.
//!
//! It describes what `--cfg job --resolve` prints. A plug-in's config hangs on the value that names it: `if` the type is
//! this, `then` the kwargs look like that. A name the tables do not know is let through, for plug-ins of one's own.

use serde_json::{Map, Value, json};

use crate::choices::{Choice, choices};

/// The file's text.
pub(crate) fn text() -> String {
    let mut text = serde_json::to_string_pretty(&document()).expect("JSON has a text");
    text.push('\n');
    text
}

fn document() -> Value {
    let mut document = tpu_train::reference::schema().to_value();
    document["title"] = "The configuration of a tpu-train run, resolved".into();
    let mut definitions = take_definitions(&mut document);
    let mut conditions = Vec::new();
    for choice in choices() {
        let mut schema = choice.schema.clone().to_value();
        for (name, definition) in take_definitions(&mut schema) {
            let known = definitions.insert(name.clone(), definition.clone());
            assert!(
                known.is_none_or(|known| known == definition),
                "two types are called {name}"
            );
        }
        if let Some(object) = schema.as_object_mut() {
            object.remove("$schema");
        }
        definitions.insert(choice.name.to_owned(), schema);
        conditions.push(condition(&choice));
    }
    document["allOf"] = conditions.into();
    document["$defs"] = definitions.into();
    document
}

fn take_definitions(schema: &mut Value) -> Map<String, Value> {
    let found = schema.as_object_mut().and_then(|o| o.remove("$defs"));
    match found {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    }
}

/// If the key names the plug-in, then its section follows the plug-in's schema.
fn condition(choice: &Choice) -> Value {
    let named = at(choice.key, json!({ "const": choice.name }), true);
    let reference = json!({ "$ref": format!("#/$defs/{}", choice.name) });
    json!({ "if": named, "then": at(choice.section, reference, false) })
}

/// The schema of an object in which `schema` holds at a dotted path.
fn at(path: &str, schema: Value, is_required: bool) -> Value {
    path.rsplit('.').fold(schema, |inner, key| {
        let mut outer = json!({ "properties": { key: inner } });
        if is_required {
            // An absent key would satisfy the condition otherwise.
            outer["required"] = json!([key]);
        }
        outer
    })
}

#[cfg(test)]
mod tests {
    use schemars::Schema;

    use super::*;
    use crate::defaults::Defaults;

    #[test]
    fn the_default_configuration_follows_the_schema() {
        let document = Schema::try_from(document()).expect("a schema");
        let defaults = Defaults::compose();
        let checked = defaults.base.section("").checked(&document);
        assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }

    #[test]
    fn every_plug_in_hangs_on_its_name() {
        let document = document();
        let of_adamw = json!({
            "if": { "properties": { "trainer": { "properties": { "optimizer": {
                "properties": { "type": { "const": "adamw.AdamW" } }, "required": ["type"]
            } }, "required": ["optimizer"] } }, "required": ["trainer"] },
            "then": { "properties": { "trainer": { "properties": { "optimizer": {
                "properties": { "kwargs": { "$ref": "#/$defs/adamw.AdamW" } }
            } } } } }
        });
        let conditions = document["allOf"].as_array().expect("conditions");
        assert!(conditions.contains(&of_adamw), "{conditions:#?}");
        assert_eq!(conditions.len(), choices().len());
    }

    #[test]
    fn every_reference_leads_to_a_definition() {
        fn check(document: &Value, part: &Value) {
            match part {
                Value::Object(object) => {
                    if let Some(Value::String(reference)) = object.get("$ref") {
                        let found = document.pointer(reference.trim_start_matches('#'));
                        assert!(found.is_some(), "{reference}");
                    }
                    object.values().for_each(|inner| check(document, inner));
                }
                Value::Array(parts) => parts.iter().for_each(|inner| check(document, inner)),
                _ => {}
            }
        }
        let document = document();
        check(&document, &document);
    }
}
