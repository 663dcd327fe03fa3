//! `chat.ChatCollator`: conversations to tokens, trained on the answers.
//!
//! A record becomes messages ([`record`]), those a text by a chat template ([`template`]), and that tokens, as one text with
//! nothing put before or after it. A token is trained on if it lies wholly inside an answer, by its place in the text and not
//! by what it is. An answer ends with its end token.

mod record;
mod template;

use std::sync::Arc;

use jiff::civil::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, typed_kwargs};

pub use record::{Columns, Conversation, RecordFormat, Tags};
pub(crate) use record::{Reader, message};
pub use template::{Answer, Rendered};
use template::{ChatTemplate, NAMED};

use crate::packing::WINDOW;
use crate::{Collator, Examples, Kept, KeptTokens, Layout};

/// `data.collator.kwargs` of `chat.ChatCollator`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChatConfig {
    /// How records are written.
    pub format: RecordFormat,
    /// What columns are called.
    pub columns: Columns,
    /// What ShareGPT records call things.
    pub tags: Tags,
    /// The chat template: the name of a known one, a file that ends in `.jinja`, or Jinja itself. Without it, the one that
    /// comes with the tokenizer.
    pub template: Option<String>,
    /// What else the template sees, by name: `enable_thinking: false`, for one.
    pub template_kwargs: Map<String, Value>,
    /// The system message of conversations that have none.
    pub default_system: Option<String>,
    /// What the template has for `bos_token`; the tokenizer's, if null.
    pub bos_token: Option<String>,
    /// What the template has for `eos_token`; the tokenizer's, if null.
    pub eos_token: Option<String>,
    /// What `strftime_now` in a template gives: a fixed day, so that a row has the same tokens whenever it is read.
    pub date: String,
    /// Which tokens are trained on.
    pub train_on: TrainOn,
    /// Whether rows hold as many whole conversations as fit. Otherwise a row is one conversation.
    pub packing: bool,
    /// Rows of data that are packed together: the more, the less padding, and the more is held in memory.
    #[schemars(range(min = 1, max = 100_000))]
    pub packing_window: usize,
    /// What becomes of a conversation that is longer than `data.sequence_length`.
    pub on_too_long: OnTooLong,
    /// What becomes of a conversation in which there is nothing to train on.
    pub on_no_target: OnNoTarget,
    /// What becomes of a record of which no conversation can be made, or none that the template takes.
    pub on_bad_record: OnBadRecord,
}

impl Default for ChatConfig {
    fn default() -> Self {
        Self {
            format: RecordFormat::Auto,
            columns: Columns::default(),
            tags: Tags::default(),
            template: None,
            template_kwargs: Map::new(),
            default_system: None,
            bos_token: None,
            eos_token: None,
            date: "2024-07-26".to_owned(),
            train_on: TrainOn::Answers,
            packing: false,
            packing_window: WINDOW,
            on_too_long: OnTooLong::Cut,
            on_no_target: OnNoTarget::Skip,
            on_bad_record: OnBadRecord::Error,
        }
    }
}

/// Which tokens of a conversation are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// Those of the answers.
    Answers,
    /// Those of the last answer.
    LastAnswer,
    /// All of them.
    All,
}

/// What becomes of a conversation that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTooLong {
    /// Questions are left out with their answers until it fits: the last ones, or the first ones where the last answer is what
    /// is trained on. What is still too long is cut off at the end.
    Cut,
    /// It is left out, and counted.
    Skip,
    /// It is an error.
    Error,
}

/// What becomes of a conversation without anything to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNoTarget {
    /// It is left out, and counted.
    Skip,
    /// It is an error.
    Error,
}

/// What becomes of a malformed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRecord {
    /// It is an error.
    Error,
    /// It is left out, and counted.
    Skip,
}

/// Turns conversations into tokens, of which the answers are to predict.
pub struct ChatCollator {
    config: ChatConfig,
    reader: Reader,
    template: ChatTemplate,
    /// For conversations with tools, where the tokenizer brings another.
    with_tools: Option<ChatTemplate>,
    tokenizer: Arc<Tokenizer>,
    /// What the tokens of a conversation depend on besides it and the tokenizer.
    how: String,
}

impl ChatCollator {
    /// Errors: a template that is not there, or is not Jinja.
    pub fn new(config: ChatConfig, tokenizer: Arc<Tokenizer>) -> Result<Self, DataError> {
        let bad = |key, message| DataError::BadValue { key, message };
        let date: Date = config.date.parse().map_err(|_| {
            let message = format!("`{}` is no date such as 2024-07-26", config.date);
            bad("data.collator.kwargs.date", message)
        })?;
        let mut globals = Map::from_iter([
            ("bos_token".to_owned(), Value::from("")),
            ("eos_token".to_owned(), Value::from("")),
        ]);
        let tokens = tokenizer.special_tokens()?.into_iter();
        globals.extend(tokens.map(|(name, token)| (name, token.into())));
        for (name, token) in [
            ("bos_token", &config.bos_token),
            ("eos_token", &config.eos_token),
        ] {
            if let Some(token) = token {
                globals.insert(name.to_owned(), token.as_str().into());
            }
        }
        globals.extend(config.template_kwargs.clone());
        let compile = |source: &str| {
            ChatTemplate::new(source, globals.clone(), date)
                .map_err(|why| bad("data.collator.kwargs.template", why))
        };
        let (source, with_tools) = sources(config.template.as_deref(), &tokenizer)?;
        // How rows are filled, and what becomes of those without tokens, is another matter.
        let of_tokens = ChatConfig {
            packing: false,
            packing_window: WINDOW,
            on_too_long: OnTooLong::Cut,
            on_no_target: OnNoTarget::Skip,
            on_bad_record: OnBadRecord::Error,
            ..config.clone()
        };
        let how = format!("{of_tokens:?} {source:?} {with_tools:?} {globals:?}");
        Ok(Self {
            template: compile(&source)?,
            with_tools: with_tools.as_deref().map(compile).transpose()?,
            reader: Reader {
                format: config.format,
                columns: config.columns.clone(),
                tags: config.tags.clone(),
            },
            config,
            tokenizer,
            how,
        })
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))?))
    }

    /// The names of the templates that there are.
    pub fn templates() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// The conversation in a row. Errors: none can be made of it; they name row and message.
    pub fn read(&self, row: &Row) -> Result<Conversation, DataError> {
        let mut conversation = self.reader.read(row)?;
        if let Some(system) = &self.config.default_system {
            conversation.begin_with(system);
        }
        Ok(conversation)
    }

    /// The text of a conversation, and where its answers are. Error: the template cannot, and why.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, String> {
        self.template(conversation).render(conversation)
    }

    /// The token that ends an answer, if one token does.
    pub fn end(&self) -> Option<u32> {
        let conversation = Conversation::of(&[("user", "a"), ("assistant", "b")]);
        let rendered = self.render(&conversation).ok()?;
        let Answer { span: answer, .. } = rendered.answers.last()?;
        let mut tokens = self.tokenizer.encode_with_spans(&rendered.text).ok()?;
        tokens.retain(|(_, span)| answer.start <= span.start && span.end <= answer.end);
        let (end, _) = tokens.pop()?;
        self.tokenizer
            .as_hf()
            .get_added_tokens_decoder()
            .contains_key(&end)
            .then_some(end)
    }

    /// The text that asks for the next answer. Error: the template cannot, and why.
    pub fn prompt(&self, conversation: &Conversation) -> Result<String, String> {
        self.template(conversation).prompt(conversation)
    }

    fn template(&self, conversation: &Conversation) -> &ChatTemplate {
        match (&conversation.tools, &self.with_tools) {
            (Some(_), Some(template)) => template,
            _ => &self.template,
        }
    }

    /// The tokens of a conversation, each with whether it is trained on.
    fn tokens(&self, conversation: &Conversation) -> Result<Vec<(u32, bool)>, Problem> {
        self.tokens_from(conversation, 0)
    }

    /// The same, of which no answer before message `first` is trained on.
    pub(crate) fn tokens_from(
        &self,
        conversation: &Conversation,
        first: usize,
    ) -> Result<Vec<(u32, bool)>, Problem> {
        let rendered = self.render(conversation).map_err(Problem::Template)?;
        let is_trained = |message: Option<usize>| {
            message.is_none_or(|it| it >= first && conversation.is_trained(it))
        };
        let mut answers: Vec<_> = rendered.answers.iter().collect();
        let roles = (0..first).map(|it| conversation.role(it));
        let has_earlier = roles.into_iter().any(|role| role == "assistant");
        let is_unmarked = answers.iter().any(|answer| answer.message.is_none());
        if has_earlier && is_unmarked {
            let why = "the chat template does not mark each answer once, so the answers before the pair cannot be told from it";
            return Err(Problem::Template(why.to_owned()));
        }
        let all_trained = (0..conversation.messages.len()).all(|it| conversation.is_trained(it));
        if !all_trained && is_unmarked {
            let why =
                "the chat template does not mark each answer once, so `weight` cannot be followed";
            return Err(Problem::Template(why.to_owned()));
        }
        if self.config.train_on == TrainOn::LastAnswer {
            answers.drain(..answers.len().saturating_sub(1));
        }
        answers.retain(|answer| is_trained(answer.message));
        let tokens = self
            .tokenizer
            .encode_with_spans(&rendered.text)
            .map_err(Problem::Tokenizer)?;
        let is_target = |start: usize, end: usize| {
            self.config.train_on == TrainOn::All
                || answers.iter().any(|Answer { span: answer, .. }| {
                    answer.start <= start && end <= answer.end && start < answer.end
                })
        };
        let tokens = tokens.into_iter();
        let tokens = tokens.map(|(id, span)| (id, is_target(span.start, span.end)));
        Ok(tokens.collect())
    }
}

/// The source of the template, and of the one for conversations with tools.
fn sources(
    name: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<(String, Option<String>), DataError> {
    let key = "data.collator.kwargs.template";
    let names = || {
        NAMED
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some(name) = name else {
        let mut own = tokenizer.chat_templates()?;
        let mut take = |name: &str| {
            let at = own.iter().position(|(own, _)| own == name)?;
            Some(own.swap_remove(at).1)
        };
        let with_tools = take("tool_use");
        let Some(source) = take("default") else {
            let message = format!(
                "the tokenizer brings no chat template, so name one: {}, or a file that ends in .jinja",
                names()
            );
            return Err(DataError::BadValue { key, message });
        };
        return Ok((source, with_tools));
    };
    if let Some((_, source)) = NAMED.iter().find(|(known, _)| *known == name) {
        return Ok(((*source).to_owned(), None));
    }
    if name.ends_with(".jinja") {
        let source = std::fs::read_to_string(name).map_err(|source| DataError::Io {
            path: name.into(),
            source,
        })?;
        return Ok((source, None));
    }
    if name.contains("{%") || name.contains("{{") {
        return Ok((name.to_owned(), None));
    }
    let message = format!(
        "unknown template `{name}`; known: {}, or a file that ends in .jinja",
        names()
    );
    Err(DataError::BadValue { key, message })
}

/// Why there are no tokens.
pub(crate) enum Problem {
    Template(String),
    Tokenizer(DataError),
}

impl Problem {
    /// With the row that it is about.
    pub(crate) fn at(self, row: &Row) -> DataError {
        match self {
            Self::Template(message) => DataError::BadRow {
                at: row.at.clone(),
                message,
            },
            Self::Tokenizer(error) => error,
        }
    }
}

impl Collator for ChatCollator {
    fn layout(&self) -> Layout {
        if self.config.packing {
            Layout::Fitted(self.config.packing_window)
        } else {
            Layout::Padded
        }
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(self.reader.columns_used())
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let bad = |message: String| DataError::BadRow {
            at: row.at.clone(),
            message,
        };
        let encode = |conversation: &Conversation| {
            self.tokens(conversation).map_err(|problem| problem.at(row))
        };
        let made = self
            .read(row)
            .and_then(|conversation| Ok((encode(&conversation)?, conversation)));
        let (mut tokens, mut conversation) = match made {
            Err(error) if self.config.on_bad_record == OnBadRecord::Skip && is_of_row(&error) => {
                examples.skip();
                return Ok(());
            }
            made => made?,
        };
        let most = examples.sequence_length();
        let all_tokens = tokens.len();
        if all_tokens > most {
            match self.config.on_too_long {
                OnTooLong::Cut => {
                    while tokens.len() > most
                        && drop_exchange(&mut conversation, self.config.train_on)
                    {
                        tokens = encode(&conversation)?;
                    }
                    tokens.truncate(most);
                }
                OnTooLong::Skip => {
                    examples.skip();
                    return Ok(());
                }
                OnTooLong::Error => {
                    return Err(bad(format!(
                        "{all_tokens} tokens, more than data.sequence_length={most} (data.collator.kwargs.on_too_long)"
                    )));
                }
            }
        }
        // The first token of a row has none that predicts it.
        if !tokens.iter().skip(1).any(|(_, is_target)| *is_target) {
            return match self.config.on_no_target {
                OnNoTarget::Skip => {
                    examples.skip();
                    Ok(())
                }
                OnNoTarget::Error => Err(bad(format!(
                    "nothing to train on in the {} tokens of it that data.sequence_length={most} takes (data.collator.kwargs.on_no_target)",
                    tokens.len()
                ))),
            };
        }
        let num_cut = all_tokens - tokens.len();
        let example = examples.add();
        for (id, is_target) in tokens {
            example.input_ids.push(id);
            if is_target {
                example.label_all();
            } else {
                example.label_none();
            }
        }
        examples.cut(num_cut);
        Ok(())
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept {
            how: self.how.clone(),
            what: KeptTokens::Labelled,
        })
    }

    fn may_leave_out(&self) -> bool {
        let ChatConfig {
            on_too_long,
            on_no_target,
            on_bad_record,
            ..
        } = self.config;
        on_too_long == OnTooLong::Skip
            || on_no_target == OnNoTarget::Skip
            || on_bad_record == OnBadRecord::Skip
    }

    fn answer_end(&self) -> Option<u32> {
        self.end()
    }

    fn chat_template(&self) -> Option<String> {
        self.config
            .template
            .is_some()
            .then(|| self.template.plain_source())
    }
}

/// Whether another row may be without fault. What is null is for `data.nulls` to judge.
pub(crate) fn is_of_row(error: &DataError) -> bool {
    use DataError::{BadRow, MissingField, WrongField};
    matches!(
        error,
        BadRow { .. } | MissingField { .. } | WrongField { .. }
    )
}

/// Takes a question with its answers out of the conversation, unless it is the only one.
fn drop_exchange(conversation: &mut Conversation, train_on: TrainOn) -> bool {
    let roles = (0..conversation.messages.len()).map(|index| (index, conversation.role(index)));
    let questions: Vec<usize> = roles
        .filter(|(_, role)| *role == "user")
        .map(|(index, _)| index)
        .collect();
    let (Some(&first), Some(&last), true) =
        (questions.first(), questions.last(), questions.len() > 1)
    else {
        return false;
    };
    match train_on {
        TrainOn::LastAnswer => conversation.messages.drain(first..questions[1]),
        TrainOn::Answers | TrainOn::All => conversation.messages.drain(last..),
    };
    true
}
