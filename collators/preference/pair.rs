//! Records of pairs, however they are written, to a prompt and two answers to it.
//!
//! Answers are strings, messages or lists of messages. A list with a question in it is a whole conversation, and its prompt is
//! what both begin with; so it is of strings without a prompt, which are whole texts then.

use serde_json::{Map, Value as Json};
use tt_data::{DataError, Row, Value};

use super::PreferenceColumns;
use crate::RecordFormat;
use crate::chat::{Reader, message};

/// Messages as chat templates take them.
pub(super) type Messages = Vec<Map<String, Json>>;

/// A prompt with the chosen answer and the rejected one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pair {
    /// Texts as they are.
    Texts {
        prompt: String,
        answers: [String; 2],
    },
    /// For a chat template.
    Messages {
        prompt: Messages,
        answers: [Messages; 2],
    },
}

/// What a column holds of a pair.
enum Part {
    Text(String),
    Messages(Messages),
}

/// Where a prompt is that no column is named for, and a list of messages before the answers.
const PROMPT: &str = "prompt";
const CONVERSATIONS: &str = "conversations";

/// Reads records of pairs.
pub(super) struct PairReader {
    pub(super) columns: PreferenceColumns,
    /// Of messages, and of Alpaca's questions.
    pub(super) reader: Reader,
    /// Strings are what the user and the assistant say, not texts as they are.
    pub(super) has_template: bool,
}

impl PairReader {
    /// The pair in a row. Errors: none can be made of it; they name the row and what is wrong.
    pub(super) fn read(&self, row: &Row) -> Result<Pair, DataError> {
        let PreferenceColumns {
            chosen, rejected, ..
        } = &self.columns;
        match [self.part(row, chosen)?, self.part(row, rejected)?] {
            [Part::Text(chosen), Part::Text(rejected)] => self.of_texts(row, [chosen, rejected]),
            [Part::Messages(chosen), Part::Messages(rejected)] => {
                self.of_messages(row, [chosen, rejected])
            }
            _ => {
                let why =
                    format!("one of `{chosen}` and `{rejected}` is a string and the other is not");
                Err(bad(row, why))
            }
        }
    }

    /// The columns that a pair may be in.
    pub(super) fn columns_used(&self) -> Vec<String> {
        let PreferenceColumns {
            prompt,
            chosen,
            rejected,
            ..
        } = &self.columns;
        let prompt = prompt.as_deref().unwrap_or(PROMPT);
        let own = [prompt, chosen, rejected].map(str::to_owned);
        own.into_iter().chain(self.reader.columns_used()).collect()
    }

    fn of_texts(&self, row: &Row, answers: [String; 2]) -> Result<Pair, DataError> {
        let prompt = match self.prompt(row)? {
            Some(Part::Messages(prompt)) => {
                let answers = answers.map(|text| vec![message("assistant", &text)]);
                return Ok(Pair::Messages { prompt, answers });
            }
            Some(Part::Text(prompt)) => prompt,
            None => {
                let length = common_text(&answers);
                let prompt = answers[0][..length].to_owned();
                let answers = answers.map(|text| text[length..].to_owned());
                return Ok(Pair::Texts { prompt, answers });
            }
        };
        if !self.has_template {
            return Ok(Pair::Texts { prompt, answers });
        }
        Ok(Pair::Messages {
            prompt: vec![message("user", &prompt)],
            answers: answers.map(|text| vec![message("assistant", &text)]),
        })
    }

    fn of_messages(&self, row: &Row, mut answers: [Messages; 2]) -> Result<Pair, DataError> {
        let begins_with_a_question = |messages: &Messages| {
            let first = messages.iter().find(|it| it["role"] != "system");
            first.is_some_and(|it| it["role"] == "user")
        };
        let is_whole = answers.iter().all(begins_with_a_question);
        let mut prompt = match self.prompt(row)? {
            // What stands in a column and in the conversations too is one prompt.
            Some(Part::Messages(prompt)) if is_whole && begins_with(&answers[0], &prompt) => {
                Vec::new()
            }
            Some(Part::Text(_)) | None if is_whole => Vec::new(),
            Some(Part::Messages(prompt)) => prompt,
            Some(Part::Text(prompt)) => vec![message("user", &prompt)],
            None => {
                let known: Vec<&str> = row.fields.names().collect();
                let why = format!(
                    "no question: neither in the answers nor in one of the columns `{PROMPT}`, `{}` and `{CONVERSATIONS}`, but {}; \
                     data.collator.kwargs.columns names others",
                    self.reader.columns.prompt,
                    known.join(", ")
                );
                return Err(bad(row, why));
            }
        };
        if is_whole {
            // The last message of each is an answer, whatever it says.
            let most = answers[0].len().min(answers[1].len()).saturating_sub(1);
            let both = answers[0].iter().zip(&answers[1]).take(most);
            let common = both.take_while(|(a, b)| is_same(a, b)).count();
            prompt.extend(answers[0][..common].iter().cloned());
            answers
                .iter_mut()
                .for_each(|answer| drop(answer.drain(..common)));
        }
        Ok(Pair::Messages { prompt, answers })
    }

    /// What is before the answers, if a column has it.
    fn prompt(&self, row: &Row) -> Result<Option<Part>, DataError> {
        let has = |name: &str| !matches!(row.fields.get(name), None | Some(Value::Null));
        if let Some(name) = &self.columns.messages {
            return self.part(row, name).map(Some);
        }
        if let Some(name) = &self.columns.prompt {
            return self.part(row, name).map(Some);
        }
        if has(PROMPT) {
            return self.part(row, PROMPT).map(Some);
        }
        if has(&self.reader.columns.prompt) {
            return Ok(Some(Part::Messages(self.reader.question(row)?)));
        }
        if has(CONVERSATIONS) {
            return self.part(row, CONVERSATIONS).map(Some);
        }
        Ok(None)
    }

    fn part(&self, row: &Row, name: &str) -> Result<Part, DataError> {
        match row.get(name)? {
            Value::Text(text) => Ok(Part::Text(text.clone())),
            Value::List(_) | Value::Struct(_) | Value::Ints(_) => {
                let messages = self.reader.messages(row, name, RecordFormat::Auto)?;
                Ok(Part::Messages(messages))
            }
            other => Err(row.wrong(name, "a string, a message or a list of messages", other)),
        }
    }
}

fn is_same(a: &Map<String, Json>, b: &Map<String, Json>) -> bool {
    let keys = ["role", "content", "tool_calls"];
    keys.iter().all(|key| a.get(*key) == b.get(*key))
}

fn begins_with(messages: &Messages, prompt: &Messages) -> bool {
    let mut both = messages.iter().zip(prompt);
    messages.len() > prompt.len() && both.all(|(a, b)| is_same(a, b))
}

/// Bytes that both texts begin with, up to a blank before the word in which they part: a tokenizer puts that to the word.
fn common_text([a, b]: &[String; 2]) -> usize {
    let same = a
        .char_indices()
        .zip(b.chars())
        .take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    if a == b {
        return end;
    }
    let goes_on = |text: &str| text[end..].starts_with(char::is_alphanumeric);
    let before = match goes_on(a) || goes_on(b) {
        true => a[..end].trim_end_matches(char::is_alphanumeric),
        false => &a[..end],
    };
    before.strip_suffix(' ').unwrap_or(before).len()
}

fn bad(row: &Row, message: String) -> DataError {
    DataError::BadRow {
        at: row.at.clone(),
        message,
    }
}
