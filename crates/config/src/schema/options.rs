//! What a key takes, where that is a choice among a few values: for completion.

use serde_json::Value;

use super::rules::{MAX_REFERENCES, follow, list, types};

/// The values of the key at `path` below what `root` describes; none if they are no short list. `null` is among them
/// where the key takes it.
pub fn key_options(root: &Value, path: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    collect(root, root, path, 0, &mut found);
    let is_choice = found.iter().any(|option| option != "null");
    if is_choice { found } else { Vec::new() }
}

fn collect(root: &Value, schema: &Value, path: &[&str], depth: usize, found: &mut Vec<String>) {
    let Some(schema) = follow(root, schema).as_object() else {
        return;
    };
    if depth > MAX_REFERENCES {
        return;
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        for part in list(schema, keyword) {
            collect(root, part, path, depth + 1, found);
        }
    }
    if let [first, rest @ ..] = path {
        let named = schema.get("properties").and_then(|all| all.get(first));
        if let Some(child) = named.or_else(|| schema.get("additionalProperties")) {
            collect(root, child, rest, depth + 1, found);
        }
        return;
    }
    let mut push = |option: String| {
        if !found.contains(&option) {
            found.push(option);
        }
    };
    for option in list(schema, "enum").chain(schema.get("const")) {
        push(
            option
                .as_str()
                .map_or_else(|| option.to_string(), str::to_owned),
        );
    }
    for name in types(schema) {
        match name {
            "boolean" => ["true", "false"]
                .map(str::to_owned)
                .into_iter()
                .for_each(&mut push),
            "null" => push("null".to_owned()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};

    use super::*;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "read as a schema")]
    struct Root {
        on: bool,
        action: Option<Action>,
        parts: Vec<Part>,
        part: Part,
        size: u32,
        name: Option<String>,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "read as a schema")]
    struct Part {
        action: Action,
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "snake_case")]
    #[expect(dead_code, reason = "read as a schema")]
    enum Action {
        /// With a comment, as schemars writes it apart.
        Stop,
        SkipAll,
    }

    #[test]
    fn enums_and_booleans_are_listed_wherever_they_stand() {
        let root = schema_for!(Root).to_value();
        let options = |path: &str| key_options(&root, &path.split('.').collect::<Vec<_>>());
        assert_eq!(options("on"), ["true", "false"]);
        let mut actions = options("action");
        actions.sort();
        assert_eq!(actions, ["null", "skip_all", "stop"]);
        let mut actions = options("part.action");
        actions.sort();
        assert_eq!(actions, ["skip_all", "stop"]);
        for path in ["size", "name", "part", "absent", "on.more", ""] {
            assert!(options(path).is_empty(), "{path}");
        }
    }
}
