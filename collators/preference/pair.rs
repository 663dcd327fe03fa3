//! Records of pairs, however they are written, to a prompt and two answers to it.
//!
//! Answers are strings, messages or lists of messages. A list with a question in it is a whole conversation ([`shared`]); strings
//! without a prompt are whole texts, whose prompt is what both begin with. Nothing that a record says besides is passed over
//! where it may be a part of what is asked.
//!
//! [`shared`]: super::shared

use serde_json::{Map, Value as Json};
use tt_data::{DataError, Row, Value};

use super::PreferenceColumns;
use super::shared::{Part, is_whole, part};
use crate::chat::{Reader, message};
use crate::{Conversation, RecordFormat};

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

/// Where a prompt is that no column is named for: a text or messages, a list of messages before the answers, and a text again.
const PROMPT: &str = "prompt";
const CONVERSATIONS: &str = "conversations";
const QUESTION: &str = "question";

/// Columns that hold a question where they hold text, and are not known to be the prompt for sure.
const ASKING: [&str; 3] = ["query", "input", "problem"];

/// Reads records of pairs.
pub(super) struct PairReader {
    pub(super) columns: PreferenceColumns,
    /// Of messages, and of Alpaca's questions.
    pub(super) reader: Reader,
    /// Strings are what the user and the assistant say, not texts as they are.
    pub(super) has_template: bool,
    /// Conversations are given a system message.
    pub(super) has_default_system: bool,
}

impl PairReader {
    /// The pair in a row. Errors: none can be made of it; they name the row and what is wrong.
    pub(super) fn read(&self, row: &Row) -> Result<Pair, DataError> {
        let PreferenceColumns {
            chosen, rejected, ..
        } = &self.columns;
        self.reader.check_columns(row)?;
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
        let prompts = match prompt {
            Some(prompt) => vec![prompt.as_str()],
            None => [&[PROMPT, CONVERSATIONS, QUESTION], &ASKING[..]].concat(),
        };
        let own = prompts
            .into_iter()
            .chain([chosen, rejected].map(String::as_str));
        let own = own.map(str::to_owned);
        own.chain(self.reader.columns_used()).collect()
    }

    fn of_texts(&self, row: &Row, answers: [String; 2]) -> Result<Pair, DataError> {
        let prompt = match self.prompt(row)? {
            Some(Part::Messages(prompt)) => {
                let answers = answers.map(|text| vec![message("assistant", &text)]);
                return Ok(Pair::Messages { prompt, answers });
            }
            Some(Part::Text(prompt)) if self.has_template => {
                return Ok(Pair::Messages {
                    prompt: vec![message("user", &prompt)],
                    answers: answers.map(|text| vec![message("assistant", &text)]),
                });
            }
            prompt => prompt,
        };
        if let Some(Part::Text(prompt)) = prompt {
            self.check_scene(row)?;
            let answers = after_prompt(&prompt, answers);
            return Ok(Pair::Texts { prompt, answers });
        }
        let length = common_text(&answers);
        let prompt = answers[0][..length].to_owned();
        self.check_prompt(row, &prompt)?;
        self.check_scene(row)?;
        let answers = answers.map(|text| text[length..].to_owned());
        Ok(Pair::Texts { prompt, answers })
    }

    /// Error: there is something beside texts as they are that has a place in a chat template only.
    fn check_scene(&self, row: &Row) -> Result<(), DataError> {
        let mut scene = Conversation::default();
        self.reader.set_scene(row, &mut scene)?;
        let what = if !scene.messages.is_empty() {
            &self.columns.system
        } else if scene.tools.is_some() {
            &self.columns.tools
        } else if self.has_default_system {
            "data.collator.kwargs.default_system"
        } else {
            return Ok(());
        };
        let why = match self.has_template {
            false => needs_template(what),
            // Two texts without a prompt are texts all the same.
            true => format!(
                "there is `{what}` and no prompt for it to stand before; data.collator.kwargs.columns.prompt names its column"
            ),
        };
        Err(bad(row, why))
    }

    /// Error: what is left without a column for the prompt, in whose place is what both texts begin with, may be the question.
    fn check_prompt(&self, row: &Row, common: &str) -> Result<(), DataError> {
        let PreferenceColumns {
            chosen,
            rejected,
            system,
            tools,
            ..
        } = &self.columns;
        let is_none = common.trim().is_empty();
        let mut others = row.fields.iter().filter(|(name, value)| {
            let is_question = match value {
                Value::Text(text) if text.trim().is_empty() => false,
                Value::Text(text) => {
                    is_none || ASKING.contains(name) && !common.contains(text.trim())
                }
                Value::List(list) => is_none && matches!(list.first(), Some(Value::Struct(_))),
                _ => false,
            };
            is_question
                && [chosen, rejected, system, tools]
                    .iter()
                    .all(|it| *it != name)
        });
        let others = others.next().map(|(name, _)| name);
        let unread = row.fields.unread_texts().find(|_| is_none);
        let Some(other) = others.or(unread) else {
            return Ok(());
        };
        let why = format!(
            "no prompt: the record has none of {}, and what `{chosen}` and `{rejected}` begin with alike is none while there is \
             `{other}`; data.collator.kwargs.columns.prompt={other} says that it is there, and \
             data.dataset.kwargs.columns=[{chosen},{rejected}] that there is none. The columns are {}",
            self.known_prompts(),
            names(row)
        );
        Err(bad(row, why))
    }

    fn of_messages(&self, row: &Row, answers: [Messages; 2]) -> Result<Pair, DataError> {
        let PreferenceColumns {
            chosen, rejected, ..
        } = &self.columns;
        let prompt = self.prompt(row)?;
        if prompt.is_none() && !answers.iter().any(is_whole) {
            let why = format!(
                "no question: neither in the answers nor in one of the columns {}, but {}; data.collator.kwargs.columns names \
                 others",
                self.known_prompts(),
                names(row)
            );
            return Err(bad(row, why));
        }
        let made = part(prompt, answers, [chosen, rejected]);
        let (prompt, answers) = made.map_err(|why| bad(row, why))?;
        Ok(Pair::Messages { prompt, answers })
    }

    fn known_prompts(&self) -> String {
        let alpaca = &self.reader.columns.prompt;
        format!("`{PROMPT}`, `{alpaca}`, `{CONVERSATIONS}` and `{QUESTION}`")
    }

    /// What is before the answers, if a column has it.
    fn prompt(&self, row: &Row) -> Result<Option<Part>, DataError> {
        let has = |name: &str| !matches!(row.fields.get(name), None | Some(Value::Null));
        if let Some(name) = &self.columns.messages {
            return self.part(row, name).map(Some);
        }
        if let Some(name) = &self.columns.prompt {
            return self.mapped_prompt(row, name).map(Some);
        }
        if has(PROMPT) {
            return self.mapped_prompt(row, PROMPT).map(Some);
        }
        let alpaca = &self.reader.columns.prompt;
        if has(alpaca) {
            let question = self.reader.question(row, alpaca)?;
            return Ok(Some(Part::Messages(question)));
        }
        if has(CONVERSATIONS) {
            return self.part(row, CONVERSATIONS).map(Some);
        }
        if matches!(row.fields.get(QUESTION), Some(Value::Text(_))) {
            return self.mapped_prompt(row, QUESTION).map(Some);
        }
        Ok(None)
    }

    /// The prompt in column `name`, with what else is the question where the configuration says what columns are, as of Alpaca
    /// records. Error: there is more than one text, and no template to put them together.
    fn mapped_prompt(&self, row: &Row, name: &str) -> Result<Part, DataError> {
        let part = self.part(row, name)?;
        let (own, usual) = (&self.columns, PreferenceColumns::default());
        let is_mapped =
            own.prompt.is_some() || own.query != usual.query || own.history != usual.history;
        let Part::Text(text) = &part else {
            return Ok(part);
        };
        if !is_mapped {
            return Ok(part);
        }
        let question = self.reader.question(row, name)?;
        let more = match &question[..] {
            [only] if only["content"] == *text.as_str() => return Ok(part),
            [_] => &own.query,
            _ => &own.history,
        };
        match self.has_template {
            true => Ok(Part::Messages(question)),
            false => Err(bad(row, needs_template(more))),
        }
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

fn needs_template(what: &str) -> String {
    format!(
        "there is `{what}` beside texts as they are, which has a place in a chat template only: data.collator.kwargs.template=chatml, \
         for one, makes the prompt and the answers messages of it, and data.dataset.kwargs.columns names the columns to read if it \
         is none of the question"
    )
}

fn names(row: &Row) -> String {
    let names: Vec<&str> = row.fields.names().collect();
    names.join(", ")
}

/// Without the prompt that both begin with, if it is of several lines as whole texts are: a short one may be echoed.
fn after_prompt(prompt: &str, answers: [String; 2]) -> [String; 2] {
    let rest = [0, 1].map(|i| answers[i].strip_prefix(prompt).map(str::to_owned));
    match rest {
        [Some(chosen), Some(rejected)] if prompt.trim_end().contains('\n') => [chosen, rejected],
        _ => answers,
    }
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
