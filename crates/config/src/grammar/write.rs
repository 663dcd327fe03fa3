//! Writes values back in the override grammar: reading the text gives the same value.

use super::lexer::{self, Kind};
use super::{Content, Element};
use crate::python;
use crate::value::{Key, KeyKind};

pub(crate) fn element(element: &Element) -> String {
    match &element.content {
        Content::Null => "null".to_string(),
        Content::Bool(value) => value.to_string(),
        Content::Int(value) => value.to_string(),
        Content::Float(value) => python::float(*value),
        Content::Text(text) => bare(text),
        Content::Quoted(text) => quoted(text),
        Content::List(items) => {
            let items: Vec<String> = items.iter().map(self::element).collect();
            format!("[{}]", items.join(","))
        }
        Content::Dict(pairs) => {
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, _, item)| format!("{}:{}", key_text(key), self::element(item)))
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        Content::Sweep(_) => String::new(),
    }
}

/// Bare if it reads back as text, quoted otherwise.
fn bare(text: &str) -> String {
    let escaped = if text.contains("${") {
        text.to_string()
    } else {
        escape(text)
    };
    if reads_as_text(&escaped, text) {
        escaped
    } else {
        quoted(text)
    }
}

fn reads_as_text(written: &str, text: &str) -> bool {
    let argument = format!("k={written}");
    match super::parse(&argument) {
        Ok(parsed) => matches!(
            parsed.value.map(|value| value.content),
            Some(Content::Text(read)) if read == text
        ),
        Err(_) => false,
    }
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if "\\()[]{}:=, \t".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// In single quotes. Backslashes are doubled only in front of a quote.
fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    let mut backslashes = 0;
    for c in text.chars() {
        if c == '\'' {
            out.extend(std::iter::repeat_n('\\', backslashes + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        out.push(c);
    }
    out.extend(std::iter::repeat_n('\\', backslashes));
    out.push('\'');
    out
}

/// A dict key cannot be quoted.
fn key_text(key: &Key) -> String {
    match key.kind() {
        KeyKind::Text if is_word(key.as_str()) => key.to_string(),
        KeyKind::Text => escape(key.as_str()),
        _ => key.to_string(),
    }
}

fn is_word(text: &str) -> bool {
    matches!(
        lexer::tokens(text).as_deref(),
        Ok([token]) if token.kind == Kind::Id
    )
}
