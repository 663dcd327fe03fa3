//! Records of conversations, however they are written, to messages as chat templates take them.
//!
//! Roles are `system`, `user`, `assistant` and `tool`. Nulls in messages and tools are left out: columns of Parquet and Arrow
//! give every message the keys of all. Arguments of tool calls that are JSON in a string, as OpenAI writes them, are records
//! here, as templates expect.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tt_data::{DataError, Row, Value};

/// How records are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// Each record as its columns say.
    #[default]
    Auto,
    /// `instruction`, `input`, `output`, and optionally `system` and `history`.
    Alpaca,
    /// `messages` with `role` and `content`, as OpenAI has them.
    Messages,
    /// `conversations` with `from` and `value`.
    Sharegpt,
}

/// The columns of a record, by the names that LLaMA-Factory has for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// Of Alpaca records: the question.
    pub prompt: String,
    /// Of Alpaca records: what comes after the question, in a line of its own, unless it is empty.
    pub query: String,
    /// Of Alpaca records: the answer.
    pub response: String,
    /// Of Alpaca records: pairs of question and answer that come before.
    pub history: String,
    /// The system message, where the messages have none.
    pub system: String,
    /// Tools that the model may call: a list, or JSON in a string.
    pub tools: String,
    /// The list of messages. Without it, `messages` or `conversations`.
    pub messages: Option<String>,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            prompt: "instruction".to_owned(),
            query: "input".to_owned(),
            response: "output".to_owned(),
            history: "history".to_owned(),
            system: "system".to_owned(),
            tools: "tools".to_owned(),
            messages: None,
        }
    }
}

/// What ShareGPT records call things, by the names that LLaMA-Factory has for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tags {
    /// Where a message says whose it is.
    pub role_tag: String,
    /// Where its text is.
    pub content_tag: String,
    /// Who asks.
    pub user_tag: String,
    /// Who answers.
    pub assistant_tag: String,
    /// Who sets the scene.
    pub system_tag: String,
    /// What a tool has returned.
    pub observation_tag: String,
    /// A call of tools: JSON with `name` and `arguments`, or a list of such.
    pub function_tag: String,
}

impl Default for Tags {
    fn default() -> Self {
        Self {
            role_tag: "from".to_owned(),
            content_tag: "value".to_owned(),
            user_tag: "human".to_owned(),
            assistant_tag: "gpt".to_owned(),
            system_tag: "system".to_owned(),
            observation_tag: "observation".to_owned(),
            function_tag: "function_call".to_owned(),
        }
    }
}

/// A conversation, as a chat template takes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Each with its role and content, and what else the template may look at.
    pub messages: Vec<Map<String, Json>>,
    /// What may be called, as the template takes it.
    pub tools: Option<Json>,
}

impl Conversation {
    /// Messages of (role, content).
    pub fn of(messages: &[(&str, &str)]) -> Self {
        Self {
            messages: messages
                .iter()
                .map(|(role, content)| message(role, content))
                .collect(),
            tools: None,
        }
    }

    /// Puts a system message before the others, if there is none.
    pub(crate) fn begin_with(&mut self, system: &str) {
        if self
            .messages
            .first()
            .is_none_or(|first| first["role"] != "system")
        {
            self.messages.insert(0, message("system", system));
        }
    }

    /// What role the message at `index` has.
    pub fn role(&self, index: usize) -> &str {
        self.messages[index]["role"].as_str().unwrap_or_default()
    }

    /// The text of the message at `index`.
    pub fn content(&self, index: usize) -> &str {
        self.messages[index]["content"].as_str().unwrap_or_default()
    }

    /// Whether the loss is to look at the answer at `index`: not if it says `weight: 0`, as OpenAI's records do.
    pub fn is_trained(&self, index: usize) -> bool {
        self.messages[index].get("weight").and_then(Json::as_f64) != Some(0.0)
    }
}

/// Where messages are, as OpenAI and ShareGPT call it.
const LISTS: [&str; 2] = ["messages", "conversations"];

/// Reads records.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reader {
    pub format: RecordFormat,
    pub columns: Columns,
    pub tags: Tags,
}

impl Reader {
    /// The conversation in a row. Errors: none can be made of it; they name row and message.
    pub fn read(&self, row: &Row) -> Result<Conversation, DataError> {
        self.check_columns(row)?;
        let has = |field: &str| !matches!(row.fields.get(field), None | Some(Value::Null));
        let (format, list) = match (self.format, &self.columns.messages) {
            (RecordFormat::Auto, Some(list)) => (self.format, list.as_str()),
            (RecordFormat::Auto, None) => match LISTS.into_iter().find(|list| has(list)) {
                Some(list) => (self.format, list),
                None => (RecordFormat::Alpaca, ""),
            },
            (RecordFormat::Messages, list) => (self.format, list.as_deref().unwrap_or(LISTS[0])),
            (format, list) => (format, list.as_deref().unwrap_or(LISTS[1])),
        };
        let mut conversation = match format {
            RecordFormat::Alpaca => self.alpaca(row)?,
            _ => self.list(row, list, format)?,
        };
        self.set_scene(row, &mut conversation)?;
        Ok(conversation)
    }

    /// Error: the column that the configuration names for the rest of the question is not there, not even with a null. What
    /// else a record may do without, many in lines of JSON do without.
    pub fn check_columns(&self, row: &Row) -> Result<(), DataError> {
        let name = &self.columns.query;
        if *name == Columns::default().query || row.fields.get(name).is_some() {
            return Ok(());
        }
        let known: Vec<&str> = row.fields.names().collect();
        let why = format!(
            "no column `{name}`, which is what data.collator.kwargs.columns.query names, but {}; a record without one has a null \
             or an empty string there",
            known.join(", ")
        );
        Err(bad(row, why))
    }

    /// Gives the conversation what a row has besides messages: a system message, and tools.
    pub fn set_scene(&self, row: &Row, conversation: &mut Conversation) -> Result<(), DataError> {
        if let Some(system) = self.optional_text(row, &self.columns.system)?
            && !system.is_empty()
        {
            conversation.begin_with(system);
        }
        conversation.tools = self.tools(row)?;
        Ok(())
    }

    /// The columns that a conversation may be in, whatever the format.
    pub fn columns_used(&self) -> Vec<String> {
        let Columns {
            prompt,
            query,
            response,
            history,
            system,
            tools,
            messages,
        } = &self.columns;
        let lists = match messages {
            Some(list) => vec![list.as_str()],
            None => LISTS.to_vec(),
        };
        let rest = [prompt, query, response, history, system, tools].map(String::as_str);
        lists.into_iter().chain(rest).map(str::to_owned).collect()
    }

    fn alpaca(&self, row: &Row) -> Result<Conversation, DataError> {
        let columns = &self.columns;
        if self.format == RecordFormat::Auto && row.fields.get(&columns.prompt).is_none() {
            let known: Vec<&str> = row.fields.names().collect();
            return Err(bad(
                row,
                format!(
                    "no conversation: none of the columns `messages`, `conversations` and `{}`, but {}; \
                     data.collator.kwargs.columns names others",
                    columns.prompt,
                    known.join(", ")
                ),
            ));
        }
        let mut messages = self.question(row, &columns.prompt)?;
        messages.push(message("assistant", row.text(&columns.response)?));
        Ok(Conversation {
            messages,
            tools: None,
        })
    }

    /// The messages of an Alpaca record before its answer, whose question is in column `prompt`.
    pub fn question(&self, row: &Row, prompt: &str) -> Result<Vec<Map<String, Json>>, DataError> {
        let columns = &self.columns;
        let mut messages = Vec::new();
        let history = match columns.history != prompt {
            true => self.history(row)?,
            false => Vec::new(),
        };
        for [question, answer] in history {
            messages.push(message("user", question));
            messages.push(message("assistant", answer));
        }
        let instruction = row.text(prompt)?;
        let input = match columns.query != prompt {
            true => self.optional_text(row, &columns.query)?.unwrap_or_default(),
            false => "",
        };
        let both = [instruction, input].map(str::to_owned).into_iter();
        let both: Vec<String> = both.filter(|text| !text.is_empty()).collect();
        let mut question = message("user", &both.join("\n"));
        question.insert("instruction".to_owned(), instruction.into());
        question.insert("input".to_owned(), input.into());
        messages.push(question);
        Ok(messages)
    }

    fn history<'a>(&self, row: &'a Row) -> Result<Vec<[&'a str; 2]>, DataError> {
        let name = &self.columns.history;
        let pairs = match row.fields.get(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Ints(none)) if none.is_empty() => return Ok(Vec::new()),
            Some(Value::List(pairs)) => pairs,
            Some(other) => return Err(row.wrong(name, "a list of pairs", other)),
        };
        let pairs = pairs.iter().enumerate();
        pairs
            .map(|(i, pair)| match pair {
                Value::List(pair) if pair.len() == 2 => match (&pair[0], &pair[1]) {
                    (Value::Text(question), Value::Text(answer)) => {
                        Ok([question.as_str(), answer.as_str()])
                    }
                    _ => Err(bad(
                        row,
                        format!("entry {} of `{name}` is not two strings", i + 1),
                    )),
                },
                _ => Err(bad(row, format!("entry {} of `{name}` is no pair", i + 1))),
            })
            .collect()
    }

    fn list(&self, row: &Row, name: &str, format: RecordFormat) -> Result<Conversation, DataError> {
        Ok(Conversation {
            messages: self.messages(row, name, format)?,
            tools: None,
        })
    }

    /// The messages in column `name`: a list of them, or a single one.
    pub fn messages(
        &self,
        row: &Row,
        name: &str,
        format: RecordFormat,
    ) -> Result<Vec<Map<String, Json>>, DataError> {
        let value = row.get(name)?;
        let list = match value {
            Value::List(list) => list,
            Value::Struct(_) => std::slice::from_ref(value),
            Value::Ints(none) if none.is_empty() => {
                return Err(bad(row, format!("`{name}` is empty")));
            }
            other => return Err(row.wrong(name, "a list of messages", other)),
        };
        let messages = list.iter().enumerate().map(|(i, value)| {
            let Json::Object(fields) = to_json(value) else {
                return Err(format!("is {}, not a record", value.kind()));
            };
            let is_sharegpt = match format {
                RecordFormat::Sharegpt => true,
                RecordFormat::Messages => false,
                _ => fields.contains_key(&self.tags.role_tag) || !fields.contains_key("role"),
            };
            let read = if is_sharegpt {
                self.sharegpt(fields)
            } else {
                openai(fields, i)
            };
            read.map_err(|why| format!("message {}: {why}", i + 1))
        });
        let messages = messages.collect::<Result<Vec<_>, _>>();
        messages.map_err(|why| bad(row, format!("`{name}`: {why}")))
    }

    fn sharegpt(&self, mut fields: Map<String, Json>) -> Result<Map<String, Json>, String> {
        let tags = &self.tags;
        let role = take_text(&mut fields, &tags.role_tag)?;
        let content = take_text(&mut fields, &tags.content_tag)?;
        let roles = [
            (&tags.user_tag, "user"),
            (&tags.assistant_tag, "assistant"),
            (&tags.system_tag, "system"),
            (&tags.observation_tag, "tool"),
            (&tags.function_tag, "function"),
        ];
        let found = roles.iter().find(|(tag, _)| **tag == role);
        // Both ways of writing are mixed in many a data set.
        let own = ["user", "assistant", "system", "tool"];
        let role = match found
            .map(|(_, role)| *role)
            .or(own.into_iter().find(|own| *own == role))
        {
            Some(role) => role,
            None => {
                let known: Vec<&str> = roles.iter().map(|(tag, _)| tag.as_str()).collect();
                return Err(format!(
                    "unknown role `{role}`; known: {}; data.collator.kwargs.tags names others",
                    known.join(", ")
                ));
            }
        };
        let mut read = if role == "function" {
            let calls: Json = serde_json::from_str(&content)
                .map_err(|error| format!("the call of a tool is not JSON: {error}"))?;
            let calls = match calls {
                Json::Array(calls) => calls,
                call => vec![call],
            };
            let mut read = message("assistant", "");
            read.insert("tool_calls".to_owned(), tool_calls(calls)?);
            read
        } else {
            message(role, &content)
        };
        fields.retain(|name, _| name == "weight");
        read.append(&mut fields);
        Ok(read)
    }

    fn optional_text<'a>(&self, row: &'a Row, name: &str) -> Result<Option<&'a str>, DataError> {
        match row.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => row.text(name).map(Some),
        }
    }

    fn tools(&self, row: &Row) -> Result<Option<Json>, DataError> {
        let name = &self.columns.tools;
        let tools = match row.fields.get(name) {
            None => Json::Null,
            Some(Value::Text(text)) if text.trim().is_empty() => Json::Null,
            Some(Value::Text(text)) => serde_json::from_str(text)
                .map_err(|error| bad(row, format!("`{name}` is not JSON: {error}")))?,
            Some(value) => to_json(value),
        };
        match tools {
            Json::Null => Ok(None),
            Json::Array(tools) if tools.is_empty() => Ok(None),
            // Each may be JSON in a string in its turn.
            Json::Array(tools) => {
                let tools = tools.into_iter().map(|tool| match &tool {
                    Json::String(text) => serde_json::from_str(text).unwrap_or(tool),
                    _ => tool,
                });
                Ok(Some(tools.collect()))
            }
            _ => Err(bad(row, format!("`{name}` is no list of tools"))),
        }
    }
}

pub(crate) fn message(role: &str, content: &str) -> Map<String, Json> {
    let fields = [("role", role), ("content", content)];
    let fields = fields.into_iter();
    fields
        .map(|(name, text)| (name.to_owned(), text.into()))
        .collect()
}

fn openai(mut fields: Map<String, Json>, index: usize) -> Result<Map<String, Json>, String> {
    let mut role = take_text(&mut fields, "role")?;
    if role == "developer" && index == 0 {
        role = "system".to_owned();
    }
    let calls = match fields.remove("tool_calls") {
        Some(Json::Array(calls)) if !calls.is_empty() => Some(tool_calls(calls)?),
        _ => None,
    };
    let content = match fields.remove("content") {
        // What calls tools need not say anything.
        None if calls.is_some() => String::new(),
        None => return Err(format!("`content` of the role `{role}` is missing or null")),
        Some(Json::String(text)) => text,
        Some(Json::Array(parts)) => joined(&parts)?,
        Some(_) => return Err("`content` is neither a string nor a list of texts".to_owned()),
    };
    let mut read = message(&role, &content);
    if let Some(calls) = calls {
        read.insert("tool_calls".to_owned(), calls);
    }
    read.append(&mut fields);
    Ok(read)
}

/// The texts of a message in parts.
fn joined(parts: &[Json]) -> Result<String, String> {
    let texts = parts
        .iter()
        .map(|part| match (part, part["type"].as_str()) {
            (Json::String(text), _) => Ok(text.as_str()),
            (_, Some("text")) => part["text"]
                .as_str()
                .ok_or("a part of `content` has no text".to_owned()),
            (_, kind) => Err(format!(
                "a part of `content` is of the type `{}`; only text can be trained on",
                kind.unwrap_or("?")
            )),
        });
    texts.collect()
}

/// Calls in the form that OpenAI gives them, with arguments as records.
fn tool_calls(calls: Vec<Json>) -> Result<Json, String> {
    let calls = calls.into_iter().map(|call| {
        let mut call = if call["function"].is_object() {
            call
        } else {
            json!({"type": "function", "function": call})
        };
        let function = &mut call["function"];
        if !function["name"].is_string() {
            return Err("a call of a tool has no `name`".to_owned());
        }
        if let Json::String(text) = &function["arguments"]
            && let Ok(arguments @ Json::Object(_)) = serde_json::from_str(text)
        {
            function["arguments"] = arguments;
        }
        Ok(call)
    });
    calls.collect()
}

fn take_text(fields: &mut Map<String, Json>, name: &str) -> Result<String, String> {
    match fields.remove(name) {
        Some(Json::String(text)) => Ok(text),
        Some(_) => Err(format!("`{name}` is not a string")),
        None => Err(format!("`{name}` is missing or null")),
    }
}

/// Without the nulls.
fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(it) => Json::from(*it),
        Value::Int(it) => Json::from(*it),
        Value::Float(it) => Json::from(*it),
        Value::Text(it) => Json::from(it.as_str()),
        Value::Ints(it) => Json::from(it.as_slice()),
        Value::List(it) => it.iter().map(to_json).collect(),
        Value::Struct(fields) => {
            let fields = fields.iter().filter(|(_, value)| **value != Value::Null);
            fields
                .map(|(name, value)| (name.to_owned(), to_json(value)))
                .collect()
        }
        Value::Other(kind) => Json::from(kind.as_str()),
    }
}

fn bad(row: &Row, message: String) -> DataError {
    DataError::BadRow {
        at: row.at.clone(),
        message,
    }
}
