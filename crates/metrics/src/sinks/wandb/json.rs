//! JSON as W&B writes it: numbers that are not finite are the bare words `NaN`, `Infinity` and `-Infinity`.

use serde_json::Value;

use super::record::Items;

/// A number as W&B writes it.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        let word = if value > 0.0 { "Infinity" } else { "-Infinity" };
        word.to_owned()
    } else {
        Value::from(value).to_string()
    }
}

/// A time, to the microsecond.
pub(super) fn seconds(value: f64) -> String {
    number((value * 1e6).round() / 1e6)
}

/// The number that a text stands for, if it is one.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => serde_json::from_str(text).ok(),
    }
}

/// An object on one line.
pub(super) fn line(items: &Items) -> String {
    let fields: Vec<_> = items
        .iter()
        .map(|(key, value)| format!("{}:{value}", string(key)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string()
}

/// A line of the server's, with null for what is not finite.
pub(super) fn parse_line(line: &str) -> Option<Value> {
    if let Ok(value) = serde_json::from_str(line) {
        return Some(value);
    }
    let mut strict = String::with_capacity(line.len());
    let mut rest = line;
    let (mut is_text, mut is_escaped) = (false, false);
    while let Some(c) = rest.chars().next() {
        let words = ["NaN", "-Infinity", "Infinity"];
        let word = words.iter().find(|word| rest.starts_with(**word));
        if let (false, Some(word)) = (is_text, word) {
            strict.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        if c == '"' && !is_escaped {
            is_text = !is_text;
        }
        is_escaped = is_text && c == '\\' && !is_escaped;
        strict.push(c);
        rest = &rest[c.len_utf8()..];
    }
    serde_json::from_str(&strict).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_are_bare_words() {
        for (value, text) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (0.3, "0.3"),
        ] {
            assert_eq!(number(value), text);
            assert_eq!(parse_number(text).unwrap().to_string(), value.to_string());
        }
        let items = Items::from([("a\"b".to_owned(), "NaN".to_owned())]);
        assert_eq!(line(&items), r#"{"a\"b":NaN}"#);
    }

    #[test]
    fn lines_with_such_words_are_read() {
        let line = r#"{"_step":7,"a":NaN,"b":-Infinity,"NaN":"Infinity \" NaN"}"#;
        let value = parse_line(line).unwrap();
        assert_eq!(value["_step"], 7);
        assert!(value["a"].is_null() && value["b"].is_null());
        assert_eq!(value["NaN"], "Infinity \" NaN");
        assert_eq!(parse_line("{"), None);
    }
}
