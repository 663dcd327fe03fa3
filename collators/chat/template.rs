//! Chat templates: Jinja, as `transformers` renders it, and where in the text the answers are.
//!
//! A template that marks answers with `{% generation %}` says so itself. Of any other it is found by comparing renderings:
//! the one up to the answer, which is what the model is asked with, and one in which the answer is another text. What cannot
//! be proved that way is an error, for a mask that is off by a token shows nowhere but in the model.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::civil::Date;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use serde_json::Value as Json;

use super::record::Conversation;

/// Templates by name.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("alpaca", include_str!("../templates/alpaca.jinja")),
    (
        "alpaca_native",
        include_str!("../templates/alpaca_native.jinja"),
    ),
    ("chatglm", include_str!("../templates/chatglm.jinja")),
    ("chatml", include_str!("../templates/chatml.jinja")),
    ("deepseek", include_str!("../templates/deepseek.jinja")),
    ("default", include_str!("../templates/default.jinja")),
    ("gemma", include_str!("../templates/gemma.jinja")),
    ("glm4", include_str!("../templates/glm4.jinja")),
    ("llama2", include_str!("../templates/llama2.jinja")),
    ("llama3", include_str!("../templates/llama3.jinja")),
    ("mistral", include_str!("../templates/mistral.jinja")),
    ("qwen2", include_str!("../templates/qwen2.jinja")),
    ("qwen3", include_str!("../templates/qwen3.jinja")),
    ("vicuna", include_str!("../templates/vicuna.jinja")),
];

/// Characters that no text has, around what the template marks as an answer, and in the place of one.
const BEGIN: char = '\u{FDD0}';
const END: char = '\u{FDD1}';
const STAND_IN: char = '\u{FDD2}';

/// A compiled template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    marks_answers: bool,
    /// What every rendering sees besides the conversation.
    globals: BTreeMap<String, Value>,
}

/// A conversation as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// All of it.
    pub text: String,
    /// Where the answers are in it.
    pub answers: Vec<Answer>,
}

/// An answer in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The bytes of it.
    pub span: Range<usize>,
    /// Which message it is, where that is known.
    pub message: Option<usize>,
}

impl ChatTemplate {
    /// `globals` are special tokens and what the user passes. Error: what is wrong with the source, and in which line.
    pub fn new(
        source: &str,
        globals: impl IntoIterator<Item = (String, Json)>,
        date: Date,
    ) -> Result<Self, String> {
        let tag = r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})";
        let tag = Regex::new(tag).map_err(|error| error.to_string())?;
        let marks_answers = tag.is_match(source);
        let lines = source.replace("\r\n", "\n");
        let marked = tag.replace_all(&lines, |found: &regex::Captures<'_>| match found.get(2) {
            None => format!("{}filter __answer{}", &found[1], &found[3]),
            Some(_) => format!("{}endfilter{}", &found[1], &found[3]),
        });
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| one_line(&error))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("__answer", |text: String| format!("{BEGIN}{text}{END}"));
        environment.add_filter("tojson", to_json);
        // `none` can be iterated here, and not in Python.
        environment.add_test("iterable", |value: &Value| {
            !value.is_none() && value.try_iter().is_ok()
        });
        environment.add_function("raise_exception", |message: String| {
            Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| {
            jiff::fmt::strtime::format(format, date.at(0, 0, 0, 0))
                .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment
            .add_template_owned("chat_template", marked.into_owned())
            .map_err(|error| one_line(&error))?;
        let globals = globals.into_iter();
        Ok(Self {
            environment,
            source: source.to_owned(),
            marks_answers,
            globals: globals
                .map(|(name, value)| (name, Value::from(Serde(value))))
                .collect(),
        })
    }

    /// The source without the marks of answers, which few programs know.
    pub fn plain_source(&self) -> String {
        let tag = Regex::new(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}");
        match tag {
            // A comment strips blanks as the tag has done.
            Ok(tag) => tag.replace_all(&self.source, "{#$1 $2#}").into_owned(),
            Err(_) => self.source.clone(),
        }
    }

    /// The text of a conversation, and where its answers are.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, String> {
        for (what, key, is_there) in [
            ("tools", "tools", conversation.tools.is_some()),
            (
                "calls of tools",
                "tool_calls",
                conversation
                    .messages
                    .iter()
                    .any(|it| it.contains_key("tool_calls")),
            ),
        ] {
            if is_there && !self.source.contains(key) {
                return Err(format!("the chat template has no place for {what}"));
            }
        }
        let scene = self.scene(conversation);
        let text = self.text(&scene, &scene.messages, false)?;
        let rendered = if self.marks_answers {
            marked(&text, conversation)?
        } else {
            let answers = self.compare(conversation, &scene, &text)?;
            Rendered { text, answers }
        };
        for index in 0..conversation.messages.len() {
            let (role, content) = (conversation.role(index), conversation.content(index));
            let is_there = |line: &str| rendered.text.contains(line.trim());
            if ["system", "user"].contains(&role) && !content.lines().all(is_there) {
                return Err(format!(
                    "the chat template leaves out message {} ({role})",
                    index + 1
                ));
            }
        }
        Ok(rendered)
    }

    /// The text that asks for an answer.
    pub fn prompt(&self, conversation: &Conversation) -> Result<String, String> {
        let scene = self.scene(conversation);
        let text = self.text(&scene, &scene.messages, true)?;
        Ok(text.replace([BEGIN, END], ""))
    }

    fn scene(&self, conversation: &Conversation) -> Scene {
        let messages = conversation.messages.iter();
        Scene {
            messages: messages
                .map(|message| Value::from(Serde(message)))
                .collect(),
            tools: Value::from(Serde(&conversation.tools)),
        }
    }

    fn text(&self, scene: &Scene, messages: &[Value], asks: bool) -> Result<String, String> {
        let mut context = self.globals.clone();
        context.insert("messages".to_owned(), Value::from(messages.to_vec()));
        context.insert("tools".to_owned(), scene.tools.clone());
        context.insert("add_generation_prompt".to_owned(), asks.into());
        let template = self.environment.get_template("chat_template");
        template
            .and_then(|template| template.render(Value::from(context)))
            .map_err(|error| format!("the chat template: {}", one_line(&error)))
    }

    /// Where the answers of `text` are, by comparing it with other renderings.
    fn compare(
        &self,
        conversation: &Conversation,
        scene: &Scene,
        text: &str,
    ) -> Result<Vec<Answer>, String> {
        let roles = (0..conversation.messages.len()).map(|index| (index, conversation.role(index)));
        let answers = roles.filter(|(_, role)| *role == "assistant");
        answers
            .map(|(index, _)| match self.answer(conversation, scene, text, index) {
                Some(span) => Ok(Answer {
                    span,
                    message: Some(index),
                }),
                None => Err(format!(
                    "in what the chat template makes of it, answer and question cannot be told apart for certain at message {}; \
                     mark answers in the template with {{% generation %}} and {{% endgeneration %}}, \
                     or name another by data.collator.kwargs.template",
                    index + 1
                )),
            })
            .collect()
    }

    /// Bytes of the answer at `index`: found with its content another text, and with that the only thing in the message.
    fn answer(
        &self,
        conversation: &Conversation,
        scene: &Scene,
        text: &str,
        index: usize,
    ) -> Option<Range<usize>> {
        let message = &conversation.messages[index];
        let mut whole = message.clone();
        whole.insert("content".to_owned(), STAND_IN.to_string().into());
        let mut bare = whole.clone();
        bare.retain(|name, _| ["role", "content"].contains(&name.as_str()));
        let stand_ins = [whole, bare].map(|message| Value::from(Serde(message)));
        let found = stand_ins.into_iter();
        let has_calls = message.contains_key("tool_calls");
        let answer = |stand_in| self.answer_by(scene, text, (index, has_calls), stand_in);
        let found = found.filter_map(answer).next()?;
        // What comes later is none of it: a template may write what a tool returned into the turn that called it.
        let mut later = scene.messages.clone();
        for (other, message) in conversation.messages.iter().enumerate().skip(index + 1) {
            let mut message = message.clone();
            message.insert("content".to_owned(), STAND_IN.to_string().into());
            later[other] = Value::from(Serde(message));
        }
        let later = self.text(scene, &later, false).ok()?;
        later.starts_with(&text[..found.end]).then_some(found)
    }

    fn answer_by(
        &self,
        scene: &Scene,
        text: &str,
        (index, has_calls): (usize, bool),
        stand_in: Value,
    ) -> Option<Range<usize>> {
        // The text of messages up to the stand-in, and from there on.
        let around = |messages: &[Value]| -> Option<(String, String)> {
            let mut messages = messages.to_vec();
            messages[index] = stand_in.clone();
            let text = self.text(scene, &messages, false).ok()?;
            let (before, after) = text.split_once(STAND_IN)?;
            (!after.contains(STAND_IN)).then(|| (before.to_owned(), after.to_owned()))
        };
        let (before, after) = around(&scene.messages)?;
        let end = text.ends_with(&after).then(|| text.len() - after.len())?;
        let start = (text.starts_with(&before) && before.len() <= end).then_some(before.len());
        // What the model is asked with; the answer is what comes after.
        let asked = |asks| self.text(scene, &scene.messages[..index], asks).ok();
        let question = asked(true);
        let question = question.filter(|it| text.starts_with(it) && it.len() <= end);
        let start = match (&question, start) {
            (Some(question), Some(start)) if question.len() >= start => question.len(),
            // A template that does not ask may write the answer's header with the answer.
            (Some(question), start)
                if start.is_some_and(|start| text[question.len()..start].trim().is_empty())
                    || asked(false).is_some_and(|it| it != *question) =>
            {
                question.len()
            }
            (_, start) => start?,
        };
        // The end token is the answer's, the blanks after it are not.
        let (_, tail) = around(&scene.messages[..=index])?;
        let tail = tail.trim_end();
        if after.starts_with(tail) {
            Some(start..end + tail.len())
        } else {
            // An end that only the last answer has. Of a call of tools it could be the call.
            (!has_calls).then_some(start..end)
        }
    }
}

/// A conversation, as the template sees it.
struct Scene {
    messages: Vec<Value>,
    tools: Value,
}

/// Takes out the marks, and gives what is between them.
fn marked(text: &str, conversation: &Conversation) -> Result<Rendered, String> {
    let mut rendered = Rendered::default();
    let mut begun = None;
    for c in text.chars() {
        match (c, begun) {
            (BEGIN, None) => begun = Some(rendered.text.len()),
            (END, Some(start)) => {
                let end = rendered.text.len();
                match rendered.answers.last_mut() {
                    // One answer in several pieces.
                    Some(answer) if answer.span.end == start => answer.span.end = end,
                    _ => rendered.answers.push(Answer {
                        span: start..end,
                        message: None,
                    }),
                }
                begun = None;
            }
            (BEGIN | END, _) => {
                return Err(
                    "the chat template has {% generation %} within {% generation %}".to_owned(),
                );
            }
            (c, _) => rendered.text.push(c),
        }
    }
    let messages =
        (0..conversation.messages.len()).filter(|index| conversation.role(*index) == "assistant");
    let messages: Vec<usize> = messages.collect();
    if messages.len() == rendered.answers.len() {
        for (answer, index) in rendered.answers.iter_mut().zip(messages) {
            answer.message = Some(index);
        }
    }
    Ok(rendered)
}

/// JSON as Python writes it, for models have learned its blanks.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let mut out = String::new();
    let style = Style {
        indent,
        sorted: sorted.unwrap_or(false),
    };
    style.write(&json, 0, &mut out);
    if ascii == Some(true) {
        let mut units = [0; 2];
        out = out.chars().fold(String::new(), |mut out, c| {
            if c.is_ascii() {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            out
        });
    }
    Ok(out)
}

/// How JSON is written.
struct Style {
    indent: Option<usize>,
    sorted: bool,
}

impl Style {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Array(items) => {
                self.group(
                    ('[', ']'),
                    items.iter().map(|item| (None, item)),
                    depth,
                    out,
                );
            }
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| (Some(name), value))
                    .collect();
                if self.sorted {
                    fields.sort_by_key(|(name, _)| *name);
                }
                self.group(('{', '}'), fields.into_iter(), depth, out);
            }
            other => out.push_str(&other.to_string()),
        }
    }

    fn group<'a>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = (Option<&'a String>, &'a Json)>,
        depth: usize,
        out: &mut String,
    ) {
        let is_empty = items.len() == 0;
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (i, (name, value)) in items.enumerate() {
            if i > 0 {
                out.push_str(if self.indent.is_some() { "," } else { ", " });
            }
            line(depth + 1, out);
            if let Some(name) = name {
                out.push_str(&Json::from(name.as_str()).to_string());
                out.push_str(": ");
            }
            self.write(value, depth + 1, out);
        }
        if !is_empty {
            line(depth, out);
        }
        out.push(close);
    }
}

fn one_line(error: &Error) -> String {
    error.to_string().replace('\n', " ")
}
