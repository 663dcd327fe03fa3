//! From the JSON schema of a typed config to the rows of its reference: one for each key that takes a value.

use serde_json::Value;

/// A key that takes a value.
pub(crate) struct Row {
    /// Dotted, from the root of the configuration.
    pub(crate) key: String,
    /// In words: `integer or null`.
    pub(crate) kind: String,
    /// Empty if every value of the type will do.
    pub(crate) range: String,
    /// What the type says; configuration files may say otherwise.
    pub(crate) default: Option<Value>,
    /// From the doc comments.
    pub(crate) meaning: String,
}

/// The keys of an object schema, those of nested objects included, in the order of their fields.
pub(crate) fn rows(root: &Value, prefix: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    collect(root, root, prefix, &mut rows);
    rows
}

fn collect(root: &Value, object: &Value, prefix: &str, rows: &mut Vec<Row>) {
    let properties = object["properties"].as_object();
    let required = object["required"].as_array();
    for (name, field) in properties.into_iter().flatten() {
        let key = match prefix {
            "" => name.clone(),
            _ => format!("{prefix}.{name}"),
        };
        let (schema, nullable) = target(root, field);
        if schema.get("properties").is_some() {
            collect(root, schema, &key, rows);
            continue;
        }
        let required = required.is_some_and(|names| names.iter().any(|n| n == name));
        let implied = (!required && nullable).then_some(Value::Null);
        rows.push(Row {
            kind: kind(root, schema, nullable),
            range: range(schema),
            default: field.get("default").cloned().or(implied),
            meaning: meaning(field, schema),
            key,
        });
    }
}

/// The schema that a field's value follows, behind references and `Option`, and whether null will do too.
fn target<'s>(root: &'s Value, field: &'s Value) -> (&'s Value, bool) {
    if let Some(reference) = field["$ref"].as_str() {
        let pointer = reference.trim_start_matches('#');
        let found = root.pointer(pointer);
        return target(root, found.expect("schemars defines what it refers to"));
    }
    if let Some([schema, null]) = field["anyOf"].as_array().map(Vec::as_slice)
        && null["type"] == "null"
    {
        return (target(root, schema).0, true);
    }
    let types = field["type"].as_array();
    let nullable = types.is_some_and(|types| types.iter().any(|name| name == "null"));
    (field, nullable)
}

fn kind(root: &Value, schema: &Value, nullable: bool) -> String {
    let options = options(schema);
    let mut names = if variants(schema).any(|variant| tag(variant).is_some()) {
        vec!["mapping".to_owned()]
    } else if options.is_empty() {
        let types = match &schema["type"] {
            Value::Array(types) => types.clone(),
            single => vec![single.clone()],
        };
        let types = types.iter().filter_map(Value::as_str);
        types
            .filter(|name| *name != "null")
            .map(|name| type_name(root, schema, name))
            .collect()
    } else {
        options.into_iter().map(code).collect::<Vec<_>>()
    };
    if nullable {
        names.push("null".to_owned());
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "any".to_owned(),
    }
}

fn type_name(root: &Value, schema: &Value, name: &str) -> String {
    match name {
        "string" => "text".to_owned(),
        "object" => "mapping".to_owned(),
        "array" => {
            let item = &schema["items"];
            let (item, nullable) = target(root, item);
            let item = kind(root, item, nullable);
            match (schema["minItems"].as_u64(), schema["maxItems"].as_u64()) {
                (Some(least), Some(most)) if least == most => format!("list of {least} {item}s"),
                _ => format!("list of {item}s"),
            }
        }
        other => other.to_owned(),
    }
}

fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    schema["oneOf"].as_array().into_iter().flatten()
}

/// The key of a variant's mapping that says which variant it is, and its value.
fn tag(variant: &Value) -> Option<(&str, &str)> {
    let mut properties = variant["properties"].as_object()?.iter();
    properties.find_map(|(name, property)| Some((name.as_str(), property["const"].as_str()?)))
}

/// How a variant is written: its text, or its mapping as `{tag: text, other keys}`.
fn written(variant: &Value) -> Option<String> {
    let Some((tag, text)) = tag(variant) else {
        return Some(variant["const"].as_str()?.to_owned());
    };
    let properties = variant["properties"].as_object()?;
    let others = properties.keys().filter(|key| *key != tag);
    let keys: String = others.map(|key| format!(", {key}")).collect();
    Some(format!("{{{tag}: {text}{keys}}}"))
}

/// The texts that an enum allows.
fn options(schema: &Value) -> Vec<&str> {
    let parts = variants(schema).chain([schema]);
    parts
        .flat_map(|part| {
            let several = part["enum"].as_array().into_iter().flatten();
            several.chain(part.get("const")).filter_map(Value::as_str)
        })
        .collect()
}

fn range(schema: &Value) -> String {
    let bounds = [
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ];
    let given = bounds.iter().filter_map(|(keyword, sign)| {
        let bound = schema[keyword].as_f64()?;
        Some(format!("{sign} {bound}"))
    });
    given.collect::<Vec<_>>().join(", ")
}

/// The field's own words, then those of the options it has.
fn meaning(field: &Value, schema: &Value) -> String {
    let own = field.get("description").or(schema.get("description"));
    let own = own.and_then(Value::as_str).map(one_line);
    let variants = variants(schema).filter_map(|variant| {
        let about = one_line(variant["description"].as_str()?);
        Some(format!("{}: {about}", code(&written(variant)?)))
    });
    own.into_iter()
        .chain(variants)
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn code(text: &str) -> String {
    format!("`{text}`")
}

#[test]
fn a_schema_becomes_one_row_a_key() {
    /// The whole.
    #[derive(schemars::JsonSchema)]
    #[expect(dead_code, reason = "read as a schema")]
    struct Whole {
        /// How
        /// much.
        #[schemars(range(min = 1, max = 9))]
        amount: u32,
        part: Option<Part>,
        /// How it is shown.
        #[serde(default = "quiet")]
        style: Style,
        /// Stretched?
        stretch: Option<Stretch>,
    }
    /// A part.
    #[derive(schemars::JsonSchema)]
    #[expect(dead_code, reason = "read as a schema")]
    struct Part {
        /// From and to.
        ends: [f64; 2],
        /// Left out?
        note: Option<String>,
    }
    #[derive(serde::Serialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[expect(dead_code, reason = "read as a schema")]
    enum Style {
        /// Nothing.
        Quiet,
        Loud,
    }
    #[derive(schemars::JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[expect(dead_code, reason = "read as a schema")]
    enum Stretch {
        /// All alike.
        Even { by: f64 },
    }
    fn quiet() -> Style {
        Style::Quiet
    }

    let schema = schemars::schema_for!(Whole).to_value();
    let found: Vec<[String; 5]> = rows(&schema, "x")
        .into_iter()
        .map(|row| {
            let default = row.default.map_or("required".to_owned(), |d| d.to_string());
            [row.key, row.kind, row.range, default, row.meaning]
        })
        .collect();
    assert_eq!(
        found,
        [
            ["x.amount", "integer", "≥ 1, ≤ 9", "required", "How much."],
            [
                "x.part.ends",
                "list of 2 numbers",
                "",
                "required",
                "From and to."
            ],
            ["x.part.note", "text or null", "", "null", "Left out?"],
            [
                "x.style",
                "`loud` or `quiet`",
                "",
                "\"quiet\"",
                "How it is shown. `quiet`: Nothing."
            ],
            [
                "x.stretch",
                "mapping or null",
                "",
                "null",
                "Stretched? `{kind: even, by}`: All alike."
            ],
        ]
    );
}
