//! Multiple-choice questions, an object a line: what is asked, the choices, and which of them is right.
//!
//! Columns, the first of these names that an object has:
//!
//! ```text
//! asked    context, query, question, ctx, prompt
//! choices  choices, endings, options: a list of texts, or as ARC has it {"text": [...], "label": [...]}
//! right    answer, gold, label, answerKey, target: a number counts from 0; a text is the label of a choice, the choice
//!          itself, its letter, or its number
//! ```
//! Errors: a line that is none of this, by file, line and column.

use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::{Map, Value};

const CONTEXT: &[&str] = &["context", "query", "question", "ctx", "prompt"];
const CHOICES: &[&str] = &["choices", "endings", "options"];
const ANSWER: &[&str] = &["answer", "gold", "label", "answerKey", "target"];

/// A question and its choices.
#[derive(Debug, PartialEq)]
pub(super) struct Question {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) asked: String,
    pub(super) choices: Vec<String>,
    /// Of the choices, from 0.
    pub(super) right: usize,
}

/// The questions of a file, at most so many. `prompt` says how one is asked.
pub(super) fn read(
    file: &Path,
    prompt: Option<&str>,
    at_most: Option<usize>,
) -> anyhow::Result<Vec<Question>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let mut questions = Vec::new();
    for (index, text) in lines.take(at_most.unwrap_or(usize::MAX)) {
        let line = index + 1;
        let at = || format!("{}:{line}", file.display());
        let object: Map<String, Value> = serde_json::from_str(text).with_context(at)?;
        questions.push(question(&object, line, prompt).with_context(at)?);
    }
    ensure!(
        !questions.is_empty(),
        "{} has no questions: an object a line is due, as {}",
        file.display(),
        r#"{"context": "...", "choices": ["...", "..."], "answer": 0}"#
    );
    Ok(questions)
}

fn question(
    object: &Map<String, Value>,
    line: usize,
    prompt: Option<&str>,
) -> anyhow::Result<Question> {
    let (name, context) = column(object, CONTEXT, "what is asked")?;
    let context = text(name, context)?;
    let asked = match prompt {
        None => context.to_owned(),
        Some(prompt) => {
            let filled = filled(prompt, context, object);
            filled.with_context(|| format!("prompt={prompt:?}"))?
        }
    };
    let (name, choices) = column(object, CHOICES, "the choices")?;
    let (texts, labels) = match choices {
        Value::Object(parts) => {
            let list = |key| parts.get(key).and_then(Value::as_array);
            let texts = list("text");
            let texts = texts.with_context(|| format!("`{name}` has no list `text`"))?;
            (texts, list("label").map_or(&[][..], Vec::as_slice))
        }
        Value::Array(texts) => (texts, &[][..]),
        _ => bail!("`{name}` is no list of texts"),
    };
    let choices: Vec<String> = texts
        .iter()
        .map(|choice| Ok(text(name, choice)?.to_owned()))
        .collect::<anyhow::Result<_>>()?;
    ensure!(choices.len() > 1, "`{name}` has fewer than two choices");
    ensure!(
        choices.iter().all(|choice| !choice.is_empty()),
        "`{name}` has an empty choice"
    );
    let (name, answer) = column(object, ANSWER, "which choice is right")?;
    let right = right(answer, &choices, labels);
    let right = right.with_context(|| format!("`{name}`: {answer} is none of the choices"))?;
    Ok(Question {
        line,
        asked,
        choices,
        right,
    })
}

fn column<'a>(
    object: &'a Map<String, Value>,
    names: &[&'static str],
    what: &str,
) -> anyhow::Result<(&'static str, &'a Value)> {
    let mut found = names.iter().filter_map(|&name| {
        let value = object.get(name).filter(|value| !value.is_null());
        Some((name, value?))
    });
    found.next().ok_or_else(|| {
        let there: Vec<&str> = object.keys().map(String::as_str).collect();
        let (names, there) = (names.join(", "), there.join(", "));
        anyhow!("no column for {what}: one of {names}; there are {there}")
    })
}

fn text<'a>(name: &str, value: &'a Value) -> anyhow::Result<&'a str> {
    value
        .as_str()
        .with_context(|| format!("`{name}`: {value} is no text"))
}

/// `prompt` with the texts of the columns that it names in braces; `{{` and `}}` are braces. Errors: a name of no column, or of
/// one that is no text; a brace without the other.
fn filled(prompt: &str, context: &str, object: &Map<String, Value>) -> anyhow::Result<String> {
    let mut filled = String::new();
    let mut rest = prompt;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        filled.push_str(before);
        let (brace, after) = from.split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            filled.push_str(brace);
            rest = after;
            continue;
        }
        let named = after.split_once('}').filter(|_| brace == "{");
        let Some((name, after)) = named else {
            bail!("a `{brace}` without the other brace; `{brace}{brace}` is one of the text");
        };
        filled.push_str(match name {
            "context" => context,
            name => match object.get(name) {
                Some(value) => text(name, value)?,
                None => {
                    let there: Vec<&str> = object.keys().map(String::as_str).collect();
                    bail!("no column `{name}`; there are {}", there.join(", "))
                }
            },
        });
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn right(answer: &Value, choices: &[String], labels: &[Value]) -> Option<usize> {
    let within = |index: usize| Some(index).filter(|&index| index < choices.len());
    let labelled = |answer: &str| {
        let is_it = |label: &Value| match label {
            Value::String(label) => label == answer,
            Value::Number(label) => label.to_string() == answer,
            _ => false,
        };
        labels.iter().position(is_it).and_then(within)
    };
    match answer {
        Value::Number(number) => labelled(&number.to_string())
            .or_else(|| within(usize::try_from(number.as_u64()?).ok()?)),
        Value::String(answer) => {
            let answer = answer.trim();
            let letter = match answer.as_bytes() {
                [letter] if letter.is_ascii_alphabetic() => {
                    Some(usize::from(letter.to_ascii_uppercase() - b'A'))
                }
                _ => None,
            };
            labelled(answer)
                .or_else(|| choices.iter().position(|choice| choice.trim() == answer))
                .or_else(|| within(letter?))
                .or_else(|| within(answer.parse().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str, prompt: Option<&str>) -> anyhow::Result<Question> {
        question(&serde_json::from_str(json).unwrap(), 7, prompt)
    }

    #[track_caller]
    fn is_right(json: &str, right: usize) {
        assert_eq!(parsed(json, None).unwrap().right, right, "{json}");
    }

    #[test]
    fn the_usual_shapes_are_read() {
        let expected = Question {
            line: 7,
            asked: "Why?".to_owned(),
            choices: vec!["so".to_owned(), "thus".to_owned()],
            right: 1,
        };
        for json in [
            r#"{"context": "Why?", "choices": ["so", "thus"], "answer": 1}"#,
            r#"{"query": "Why?", "choices": ["so", "thus"], "gold": 1}"#,
            r#"{"ctx": "Why?", "endings": ["so", "thus"], "label": "1", "ind": 4}"#,
            r#"{"question": "Why?", "choices": {"text": ["so", "thus"], "label": ["A", "B"]}, "answerKey": "B"}"#,
            r#"{"question": "Why?", "choices": {"text": ["so", "thus"], "label": ["1", "2"]}, "answerKey": "2"}"#,
            r#"{"question": "Why?", "options": ["so", "thus"], "answer": "b"}"#,
            r#"{"question": "Why?", "options": ["so", "thus"], "target": "thus"}"#,
        ] {
            assert_eq!(parsed(json, None).unwrap(), expected, "{json}");
        }
    }

    #[test]
    fn an_answer_that_is_a_choice_is_no_number_or_letter() {
        is_right(
            r#"{"query": "1+1", "choices": ["1", "3", "2"], "answer": "2"}"#,
            2,
        );
        is_right(
            r#"{"query": "1+1", "choices": ["1", "3", "2"], "answer": 2}"#,
            2,
        );
        is_right(
            r#"{"query": "first", "choices": ["B", "A"], "answer": "A"}"#,
            1,
        );
    }

    #[test]
    fn a_prompt_names_columns() {
        let json =
            r#"{"query": "Why?", "topic": "Logic {x}", "choices": ["a", "b"], "answer": "A"}"#;
        let asked = |prompt| parsed(json, Some(prompt)).unwrap().asked;
        assert_eq!(asked("{topic}: {context}\nA:"), "Logic {x}: Why?\nA:");
        assert_eq!(asked("{{{query}}} {{}}"), "{Why?} {}");
    }

    #[test]
    fn a_prompt_that_names_no_text_is_refused() {
        let json = r#"{"query": "Why?", "year": 3, "choices": ["a", "b"], "answer": "A"}"#;
        for (prompt, complaint) in [
            (
                "{nope}: x",
                "no column `nope`; there are query, year, choices, answer",
            ),
            ("{choices}", r#"`choices`: ["a","b"] is no text"#),
            ("{year}", "`year`: 3 is no text"),
            ("{query", "a `{` without the other brace; `{{` is one"),
            ("query}", "a `}` without the other brace; `}}` is one"),
            ("{}", "no column ``"),
        ] {
            let error = format!("{:#}", parsed(json, Some(prompt)).unwrap_err());
            let expected = format!("prompt={prompt:?}: {complaint}");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_by_column() {
        for (json, complaint) in [
            (
                r#"{"text": "a"}"#,
                "what is asked: one of context, query, question, ctx, prompt; there are text",
            ),
            (
                r#"{"query": 3, "choices": ["a", "b"], "answer": 0}"#,
                "`query`: 3 is no text",
            ),
            (
                r#"{"query": "a", "choices": "b", "answer": 0}"#,
                "`choices` is no list",
            ),
            (
                r#"{"query": "a", "choices": ["b"], "answer": 0}"#,
                "fewer than two",
            ),
            (
                r#"{"query": "a", "choices": ["b", ""], "answer": 0}"#,
                "empty choice",
            ),
            (
                r#"{"query": "a", "choices": ["b", "c"], "answer": 2}"#,
                "`answer`: 2 is none",
            ),
            (
                r#"{"query": "a", "choices": ["b", "c"], "answer": "D"}"#,
                "`answer`: \"D\" is none",
            ),
            (
                r#"{"query": "a", "choices": ["b", "c"], "answer": -1}"#,
                "`answer`: -1 is none",
            ),
            (
                r#"{"query": "a", "choices": ["b", "c"], "answer": null}"#,
                "which choice is right",
            ),
        ] {
            let error = format!("{:#}", parsed(json, None).unwrap_err());
            assert!(error.contains(complaint), "{json}: {error}");
        }
    }
}
