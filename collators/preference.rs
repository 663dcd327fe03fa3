//! `preference.PreferenceCollator`: pairs of a chosen and a rejected answer to one prompt, in adjacent rows of a batch.
//!
//! A record becomes a prompt and two answers ([`pair`]). Messages become text by a chat template, as in
//! [`ChatCollator`], whose tokens and masks these are; of strings, prompt and answer are one text with the end of text after
//! it, and a token that reaches from one into the other is the answer's. What is trained on of a row is its answer.
//!
//! A pair that is too long loses the beginning of its prompt, as much in both rows, and a row that still is too long its
//! beginning: the end of an answer stays.

mod pair;
mod shared;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_data::{DataError, Row, Tokenizer, typed_kwargs};

use crate::chat::{Reader, is_of_row};
use crate::{
    ChatCollator, ChatConfig, Collator, Columns, Conversation, Examples, Layout, OnBadRecord,
    OnNoTarget, OnTooLong, RecordFormat, Tags,
};
use pair::{Messages, Pair, PairReader};

/// `data.collator.kwargs` of `preference.PreferenceCollator`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PreferenceConfig {
    /// What columns are called.
    pub columns: PreferenceColumns,
    /// What ShareGPT records call things.
    pub tags: Tags,
    /// The chat template of messages, as for `chat.ChatCollator`. Where it is given, prompts and answers that are strings are
    /// messages too, and else texts as they are.
    pub template: Option<String>,
    /// What else the template sees, by name.
    pub template_kwargs: Map<String, Value>,
    /// The system message of conversations that have none.
    pub default_system: Option<String>,
    /// What the template has for `bos_token`; the tokenizer's, if null.
    pub bos_token: Option<String>,
    /// What the template has for `eos_token`; the tokenizer's, if null.
    pub eos_token: Option<String>,
    /// What `strftime_now` in a template gives.
    pub date: String,
    /// What becomes of a pair of which a row is longer than `data.sequence_length`.
    pub on_too_long: OnTooLong,
    /// What becomes of a pair of which an answer has no token to train on, or whose answers are the same.
    pub on_no_target: OnNoTarget,
    /// What becomes of a record of which no pair can be made, or none that the template takes.
    pub on_bad_record: OnBadRecord,
}

/// The columns of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PreferenceColumns {
    /// The prompt: a string or messages. If null, `prompt` where there is one, else `instruction`, else `conversations`, else
    /// `question`, else what both answers begin with.
    pub prompt: Option<String>,
    /// The better answer: a string, a message, a list of messages or a whole conversation.
    pub chosen: String,
    /// The worse one.
    pub rejected: String,
    /// Of Alpaca records, and where `prompt` is named: what comes after the `instruction`, in a line of its own.
    pub query: String,
    /// Of Alpaca records, and where `prompt` is named: pairs of question and answer that come before.
    pub history: String,
    /// The system message, where the messages have none. Beside texts as they are it is an error, as `tools` are.
    pub system: String,
    /// Tools that the model may call: a list, or JSON in a string.
    pub tools: String,
    /// The list of messages before the answers, if it is not `conversations`.
    pub messages: Option<String>,
}

impl Default for PreferenceColumns {
    fn default() -> Self {
        let Columns {
            query,
            history,
            system,
            tools,
            ..
        } = Columns::default();
        Self {
            prompt: None,
            chosen: "chosen".to_owned(),
            rejected: "rejected".to_owned(),
            query,
            history,
            system,
            tools,
            messages: None,
        }
    }
}

impl Default for PreferenceConfig {
    fn default() -> Self {
        let ChatConfig {
            date,
            on_too_long,
            on_no_target,
            on_bad_record,
            ..
        } = ChatConfig::default();
        Self {
            columns: PreferenceColumns::default(),
            tags: Tags::default(),
            template: None,
            template_kwargs: Map::new(),
            default_system: None,
            bos_token: None,
            eos_token: None,
            date,
            on_too_long,
            on_no_target,
            on_bad_record,
        }
    }
}

/// Turns a record into two rows: the prompt with the chosen answer, and with the rejected one.
pub struct PreferenceCollator {
    config: PreferenceConfig,
    reader: PairReader,
    /// Error: there is no template, which a data set of strings does without.
    chat: Result<ChatCollator, String>,
    tokenizer: Arc<Tokenizer>,
}

/// Tokens, each with whether it is trained on.
type Tokens = Vec<(u32, bool)>;

impl PreferenceCollator {
    /// Errors: a template that is named and not there, or is not Jinja.
    pub fn new(config: PreferenceConfig, tokenizer: Arc<Tokenizer>) -> Result<Self, DataError> {
        let columns = config.columns.clone();
        let of_messages = Columns {
            prompt: columns.prompt.clone().unwrap_or(Columns::default().prompt),
            query: columns.query.clone(),
            history: columns.history.clone(),
            system: columns.system.clone(),
            tools: columns.tools.clone(),
            messages: columns.messages.clone(),
            ..Columns::default()
        };
        let chat = ChatConfig {
            tags: config.tags.clone(),
            template: config.template.clone(),
            template_kwargs: config.template_kwargs.clone(),
            bos_token: config.bos_token.clone(),
            eos_token: config.eos_token.clone(),
            date: config.date.clone(),
            ..ChatConfig::default()
        };
        let chat = match ChatCollator::new(chat, Arc::clone(&tokenizer)) {
            Err(error) if config.template.is_some() => return Err(error),
            made => made.map_err(|error| error.to_string()),
        };
        Ok(Self {
            reader: PairReader {
                columns,
                reader: Reader {
                    format: RecordFormat::Auto,
                    columns: of_messages,
                    tags: config.tags.clone(),
                },
                has_template: config.template.is_some(),
                has_default_system: config.default_system.is_some(),
            },
            chat,
            config,
            tokenizer,
        })
    }

    pub(crate) fn build(
        kwargs: &Map<String, Value>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Box<dyn Collator>, DataError> {
        let config = typed_kwargs("data.collator.kwargs", kwargs)?;
        Ok(Box::new(Self::new(config, Arc::clone(tokenizer))?))
    }

    /// The tokens of both rows.
    fn pair(&self, row: &Row) -> Result<[Tokens; 2], DataError> {
        Ok(match self.reader.read(row)? {
            Pair::Texts { prompt, answers } => {
                let [chosen, rejected] = answers.map(|answer| self.of_text(&prompt, &answer));
                [chosen?, rejected?]
            }
            Pair::Messages { prompt, answers } => {
                let [chosen, rejected] =
                    answers.map(|answer| self.of_messages(row, &prompt, answer));
                [chosen?, rejected?]
            }
        })
    }

    fn of_text(&self, prompt: &str, answer: &str) -> Result<Tokens, DataError> {
        let text = format!("{prompt}{}", self.tokenizer.until_end(answer));
        let of_text = self.tokenizer.encode_with_spans(&text)?;
        // Some data sets bring what begins a text, and its end.
        let ids: Vec<u32> = of_text.iter().map(|(id, _)| *id).collect();
        let start = self.tokenizer.start_before(&ids).iter();
        let mut tokens: Tokens = start.map(|&id| (id, false)).collect();
        let of_text = of_text.into_iter();
        tokens.extend(of_text.map(|(id, span)| (id, span.end > prompt.len())));
        let end = self.tokenizer.eos_id();
        if tokens.last() != Some(&(end, true)) {
            tokens.push((end, true));
        }
        Ok(tokens)
    }

    fn of_messages(
        &self,
        row: &Row,
        prompt: &Messages,
        answer: Messages,
    ) -> Result<Tokens, DataError> {
        let bad = |message: &String| DataError::BadRow {
            at: row.at.clone(),
            message: message.clone(),
        };
        let chat = self.chat.as_ref().map_err(bad)?;
        let answers = answer.len();
        let mut conversation = Conversation {
            messages: prompt.iter().cloned().chain(answer).collect(),
            tools: None,
        };
        self.reader.reader.set_scene(row, &mut conversation)?;
        if let Some(system) = &self.config.default_system {
            conversation.begin_with(system);
        }
        let first = conversation.messages.len() - answers;
        chat.tokens_from(&conversation, first)
            .map_err(|problem| problem.at(row))
    }
}

/// Takes tokens off the beginning until no row has more than `most`: of the prompts as many from both, so that they stay the
/// same. Gives how many of both rows.
fn cut(pair: &mut [Tokens; 2], most: usize) -> usize {
    let over = |tokens: &Tokens| tokens.len().saturating_sub(most);
    let prompt = |tokens: &Tokens| {
        let first = tokens.iter().position(|(_, is_target)| *is_target);
        // The token before an answer stays, for it is what predicts the answer's first.
        first.unwrap_or(tokens.len()).saturating_sub(1)
    };
    let shared = pair.iter().map(over).max().unwrap_or(0);
    let shared = pair.iter().map(prompt).fold(shared, usize::min);
    let mut all = 0;
    for tokens in pair {
        let off = shared.max(over(tokens));
        tokens.drain(..off);
        all += off;
    }
    all
}

/// Why there is nothing to learn from a pair, if so.
fn tells_nothing(pair: &[Tokens; 2]) -> Option<&'static str> {
    // The first token of a row has none that predicts it.
    let has_target = |tokens: &Tokens| tokens.iter().skip(1).any(|(_, is_target)| *is_target);
    if !pair.iter().all(has_target) {
        return Some("an answer without a token to train on");
    }
    (pair[0] == pair[1]).then_some("two answers that are the same")
}

impl Collator for PreferenceCollator {
    fn layout(&self) -> Layout {
        Layout::Grouped(2)
    }

    fn columns(&self) -> Option<Vec<String>> {
        Some(self.reader.columns_used())
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let bad = |message: String| DataError::BadRow {
            at: row.at.clone(),
            message,
        };
        let mut pair = match self.pair(row) {
            Err(error) if self.config.on_bad_record == OnBadRecord::Skip && is_of_row(&error) => {
                examples.skip();
                return Ok(());
            }
            made => made?,
        };
        let most = examples.sequence_length();
        let longest = pair.iter().map(Vec::len).max().unwrap_or(0);
        let mut num_cut = 0;
        if longest > most {
            match self.config.on_too_long {
                OnTooLong::Cut => num_cut = cut(&mut pair, most),
                OnTooLong::Skip => {
                    examples.skip();
                    return Ok(());
                }
                OnTooLong::Error => {
                    return Err(bad(format!(
                        "{longest} tokens, more than data.sequence_length={most} (data.collator.kwargs.on_too_long)"
                    )));
                }
            }
        }
        if let Some(why) = tells_nothing(&pair) {
            return match self.config.on_no_target {
                OnNoTarget::Skip => {
                    examples.skip();
                    Ok(())
                }
                OnNoTarget::Error => Err(bad(format!(
                    "{why} in the {most} tokens that data.sequence_length takes (data.collator.kwargs.on_no_target)"
                ))),
            };
        }
        for tokens in pair {
            let example = examples.add();
            for (id, is_target) in tokens {
                example.input_ids.push(id);
                if is_target {
                    example.label_all();
                } else {
                    example.label_none();
                }
            }
        }
        examples.cut(num_cut);
        Ok(())
    }

    fn may_leave_out(&self) -> bool {
        let PreferenceConfig {
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
        self.chat.as_ref().ok()?.end()
    }

    fn chat_template(&self) -> Option<String> {
        self.chat.as_ref().ok()?.chat_template()
    }
}
