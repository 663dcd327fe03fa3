//! Text to tokens and back: any Hugging Face `tokenizer.json`, or one trained on the data.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::bpe::{Bpe, END_OF_TEXT, MASK};
use crate::byte_level::ByteLevel;
use crate::error::DataError;
use crate::location::Location;
use crate::{vocab_merges, vocab_txt};

/// Files of a tokenizer, besides `tokenizer.json`, that `transformers` reads.
const SIDE_FILES: &[&str] = &[
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// What hides a token where no file says it.
const MASKS: [&str; 2] = ["[MASK]", MASK];

/// The files of a tokenizer by name, as Hugging Face lays them out.
pub type TokenizerFiles = BTreeMap<String, Vec<u8>>;

/// Where a given tokenizer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerOrigin {
    /// A `tokenizer.json`, or a folder with one.
    Path(PathBuf),
    /// Within another file, which messages name.
    Within {
        /// The file, for messages.
        file: PathBuf,
        /// What it holds.
        files: TokenizerFiles,
    },
}

/// A tokenizer, with the tokens that training needs to know.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The same without a post-processor, some of which move the bounds of tokens.
    spans: OnceLock<tokenizers::Tokenizer>,
    /// The same, faster and without large buffers, if it is of a kind that we have.
    byte_level: Option<ByteLevel>,
    files: TokenizerFiles,
    path: PathBuf,
    /// What begins a document.
    start: Vec<u32>,
    eos_id: u32,
    pad_id: u32,
    mask_id: Option<u32>,
    vocab_size: usize,
}

impl Tokenizer {
    /// Whether a folder has the files of a tokenizer: one that can be read, or that [`Tokenizer::load`] says how to convert.
    pub fn is_in(folder: &Path) -> bool {
        folder.join("tokenizer.json").exists()
            || vocab_merges::is_in(folder)
            || vocab_txt::is_in(folder)
    }

    /// Reads a `tokenizer.json`, or the one in a folder, with the files beside it; without one, the `vocab.json` and
    /// `merges.txt` of a folder, or the `vocab.txt` of BERT.
    ///
    /// A document ends with `eos_token` if given, else with the one in `tokenizer_config.json`,
    /// else with `<|endoftext|>`, else with the `sep_token` that BERT has for it. Errors name the file.
    pub fn load(path: &Path, eos_token: Option<&str>) -> Result<Self, DataError> {
        let path = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.to_owned()
        };
        let made = match path.parent() {
            Some(folder) if path.ends_with("tokenizer.json") && !path.exists() => {
                match vocab_txt::read(folder)? {
                    Some(made) => Some(made),
                    None => vocab_merges::read(folder)?,
                }
            }
            _ => None,
        };
        if made.is_none() && !path.exists() {
            let key = "data.tokenizer.path";
            return Err(DataError::NoSuchFile { key, path });
        }
        let (json, config) = match made {
            Some((json, config)) => (json, Some(config)),
            None => (fs::read(&path).map_err(DataError::io(&path))?, None),
        };
        let mut files = BTreeMap::from([("tokenizer.json".to_owned(), json)]);
        for name in SIDE_FILES {
            let side_file = path.with_file_name(name);
            if side_file.exists() {
                let bytes = fs::read(&side_file).map_err(DataError::io(&side_file))?;
                files.insert(name.to_string(), bytes);
            }
        }
        if let Some(config) = config {
            files.insert("tokenizer_config.json".to_owned(), config);
        }
        Self::from_files(path, files, eos_token)
    }

    /// As [`Tokenizer::load`], wherever it is.
    pub fn load_from(origin: &TokenizerOrigin, eos_token: Option<&str>) -> Result<Self, DataError> {
        match origin {
            TokenizerOrigin::Path(path) => Self::load(path, eos_token),
            TokenizerOrigin::Within { file, files } => {
                Self::from_files(file.clone(), files.clone(), eos_token)
            }
        }
    }

    /// A tokenizer of single bytes and the end of text.
    pub fn bytes() -> Result<Self, DataError> {
        Self::train(std::iter::empty(), 257, false)
    }

    /// The same with a token that hides others: what stands in for a tokenizer that is still to be trained.
    pub fn stand_in() -> Result<Self, DataError> {
        Self::train(std::iter::empty(), 258, true)
    }

    /// A byte-level BPE tokenizer of `vocab_size` tokens, learned from texts; one of them is `<mask>` if `has_mask`.
    pub(crate) fn train<'a>(
        texts: impl Iterator<Item = &'a str>,
        vocab_size: usize,
        has_mask: bool,
    ) -> Result<Self, DataError> {
        let learned = vocab_size - usize::from(has_mask);
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": false,
        });
        if has_mask {
            config["mask_token"] = MASK.into();
        }
        let pretty = |json: Value| format!("{json:#}\n").into_bytes();
        let files = BTreeMap::from([
            (
                "tokenizer.json".to_owned(),
                pretty(Bpe::train(texts, learned).to_json(has_mask)),
            ),
            ("tokenizer_config.json".to_owned(), pretty(config)),
        ]);
        Self::from_files(PathBuf::from("tokenizer.json"), files, None)
    }

    fn from_files(
        path: PathBuf,
        mut files: TokenizerFiles,
        eos_token: Option<&str>,
    ) -> Result<Self, DataError> {
        let bad = |message: String| DataError::Tokenizer {
            path: path.clone(),
            message,
        };
        let bytes = files
            .get("tokenizer.json")
            .ok_or_else(|| bad("has no tokenizer.json".to_owned()))?;
        let mut inner =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| bad(error.to_string()))?;
        // Length is the collator's business.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| bad(error.to_string()))?;
        let json: Value = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        let mut config: Value = match files.get("tokenizer_config.json") {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|error| bad(format!("tokenizer_config.json: {error}")))?,
            None => Value::Null,
        };
        let id = |token: &str| {
            inner
                .token_to_id(token)
                .ok_or_else(|| bad(format!("has no token `{token}`")))
        };
        let eos_id = match eos_token.or(special_token(&config, "eos_token")) {
            Some(token) => id(token)?,
            None => inner
                .token_to_id(END_OF_TEXT)
                .or_else(|| {
                    let sep = special_token(&config, "sep_token").unwrap_or("[SEP]");
                    inner.token_to_id(sep)
                })
                .ok_or_else(|| DataError::NoEndOfText { path: path.clone() })?,
        };
        if let (Some(token), true) = (eos_token, config.is_object() || config.is_null())
            && special_token(&config, "eos_token") != Some(token)
        {
            // A checkpoint must end texts as it was trained to.
            config["eos_token"] = token.into();
            let bytes = format!("{config:#}\n").into_bytes();
            files.insert("tokenizer_config.json".to_owned(), bytes);
        }
        let pad_id = match special_token(&config, "pad_token") {
            Some(token) => id(token)?,
            None => eos_id,
        };
        let named = special_token(&config, "mask_token").map(str::to_owned);
        let known = MASKS.into_iter().find_map(|token| inner.token_to_id(token));
        let mask_id = match &named {
            Some(token) => Some(id(token)?),
            None => known,
        };
        let vocab_size = inner
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |id| id as usize + 1);
        let start = post_processors_start(&inner).map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            start,
            byte_level: ByteLevel::from_json(&json),
            inner,
            spans: OnceLock::new(),
            files,
            path,
            eos_id,
            pad_id,
            mask_id,
            vocab_size,
        })
    }

    /// Appends the tokens of `text`. Nothing is put before or after it.
    pub fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        if let Some(byte_level) = &self.byte_level
            && byte_level.encode_into(text, ids)
        {
            return Ok(());
        }
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| self.bad(error))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Where `text` may be cut, at about `max_bytes`, so that both sides encoded apart give the tokens of the whole: the
    /// left side's end and the right side's beginning, between which there may be a blank that the tokenizer puts back.
    /// `None`: the text is short, or has no such place.
    ///
    /// A cut is at a line end or a blank between words, and only where this tokenizer has been seen to split there.
    pub fn cut(&self, text: &str, max_bytes: usize) -> Result<Option<(usize, usize)>, DataError> {
        /// Places of each kind that are tried.
        const TRIES: usize = 16;
        if text.len() <= max_bytes + max_bytes / 2 {
            return Ok(None);
        }
        let last = boundary_before(text, max_bytes);
        let first = boundary_before(text, max_bytes / 2);
        let is_between_words = |at: usize| {
            let before = text[..at].chars().next_back();
            let after = text[at + 1..].chars().next();
            before.is_some_and(|c| !c.is_whitespace()) && after.is_some_and(char::is_alphanumeric)
        };
        let places = |separator| {
            let found = text[first..last].rmatch_indices(separator);
            let found = found.map(|(at, _)| first + at);
            found.filter(|at| is_between_words(*at)).take(TRIES)
        };
        let lines = places('\n').map(|at| (at + 1, at + 1));
        let words = places(' ').map(|at| (at, at));
        let without_blank = places(' ').map(|at| (at, at + 1));
        for (end, start) in lines.chain(words).chain(without_blank) {
            if self.splits_at(text, end, start)? {
                return Ok(Some((end, start)));
            }
        }
        Ok(None)
    }

    /// Whether the text around gives the same tokens whole and cut.
    fn splits_at(&self, text: &str, end: usize, start: usize) -> Result<bool, DataError> {
        const AROUND: usize = 256;
        let left = boundary_before(text, end.saturating_sub(AROUND));
        let right = boundary_before(text, (start + AROUND).min(text.len()));
        let whole = self.encode(&text[left..right])?;
        let mut apart = self.encode(&text[left..end])?;
        self.encode_into(&text[start..right], &mut apart)?;
        Ok(whole == apart)
    }

    /// What the tokenizer's post-processor puts before a text: `<s>` of Llama 2. Empty if it puts nothing there, or is
    /// not to.
    pub fn document_start(&self) -> &[u32] {
        &self.start
    }

    /// What is to be put before a text of these tokens, to begin a document: [`Tokenizer::document_start`], and nothing if the
    /// text brings it.
    pub fn start_before(&self, text: &[u32]) -> &[u32] {
        match text.starts_with(&self.start) {
            true => &[],
            false => &self.start,
        }
    }

    /// A text without the white space after the end of text, if it ends with one: the tokens of what is left end with
    /// [`Tokenizer::eos_id`] then.
    pub fn until_end<'a>(&self, text: &'a str) -> &'a str {
        let trimmed = text.trim_end();
        let ends_itself = || Some(trimmed.ends_with(&self.token(self.eos_id)?));
        match trimmed.len() < text.len() && ends_itself() == Some(true) {
            true => trimmed,
            false => text,
        }
    }

    /// Appends the tokens of the end of a document, and the end of text unless the text brings it: see
    /// [`Tokenizer::until_end`].
    pub fn encode_to_end(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        let before = ids.len();
        self.encode_into(self.until_end(text), ids)?;
        if ids[before..].last() != Some(&self.eos_id) {
            ids.push(self.eos_id);
        }
        Ok(())
    }

    /// Begins no document with what the post-processor puts there.
    #[must_use]
    pub fn without_document_start(mut self) -> Self {
        self.start.clear();
        self
    }

    /// Hides tokens with `token`, and says so in the files. Error: it has no such token.
    pub fn with_mask_token(mut self, token: &str) -> Result<Self, DataError> {
        const CONFIG: &str = "tokenizer_config.json";
        let id = self.inner.token_to_id(token);
        self.mask_id = Some(id.ok_or_else(|| self.bad(format!("has no token `{token}`").into()))?);
        let mut config = self.side_file(CONFIG)?;
        if config.is_object() || config.is_null() {
            config["mask_token"] = token.into();
            let bytes = format!("{config:#}\n").into_bytes();
            self.files.insert(CONFIG.to_owned(), bytes);
        }
        Ok(self)
    }

    /// The tokens of a text to be continued: what begins a document, and the text's, which may bring that.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let ids = self.encode(text)?;
        Ok([self.start_before(&ids), &ids].concat())
    }

    /// The text that `ids` add to that of `prompt`: decoded together, as a token may be a blank before a word, or a part of
    /// a character, only with what is before it.
    pub fn decode_continuation(&self, prompt: &[u32], ids: &[u32]) -> Result<String, DataError> {
        let before = self.decode(prompt)?;
        let whole = self.decode(&[prompt, ids].concat())?;
        // The prompt may end within a character, which the continuation completes.
        let complete = before.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let cut = if whole.starts_with(&before) {
            before.len()
        } else {
            complete.len()
        };
        match whole.get(cut..) {
            Some(text) if whole.starts_with(complete) => Ok(text.to_owned()),
            _ => self.decode(ids),
        }
    }

    /// How a token is written.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The tokens of `text`. Nothing is put before or after it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// The tokens of `text`, each with the bytes of it that it is made of. Nothing is put before or after it.
    ///
    /// A blank before a word belongs to the word's token, whatever the tokenizer's post-processor says of it, and the parts of
    /// a character that is cut among tokens have the whole character each.
    pub fn encode_with_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, DataError> {
        let without_post_processor = || {
            let mut inner = self.inner.clone();
            inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
            inner
        };
        let inner = self.spans.get_or_init(without_post_processor);
        let encoding = inner.encode(text, false).map_err(|error| self.bad(error))?;
        let ids = encoding.get_ids().iter().copied();
        let spans = encoding.get_offsets().iter();
        Ok(ids.zip(spans.map(|&(start, end)| start..end)).collect())
    }

    /// The chat templates that come with the tokenizer, by name: `default`, as a rule. A `chat_template.jinja` goes before what
    /// `tokenizer_config.json` says, as in `transformers`.
    pub fn chat_templates(&self) -> Result<Vec<(String, String)>, DataError> {
        const DEFAULT: &str = "default";
        let mut templates = Vec::new();
        match &self.side_file("tokenizer_config.json")?["chat_template"] {
            Value::String(template) => templates.push((DEFAULT.to_owned(), template.clone())),
            Value::Array(named) => {
                let of = |it: &Value, key: &str| it[key].as_str().map(str::to_owned);
                let named = named.iter();
                templates
                    .extend(named.filter_map(|it| Some((of(it, "name")?, of(it, "template")?))));
            }
            _ => {}
        }
        if let Some(bytes) = self.files.get("chat_template.jinja") {
            let template = str::from_utf8(bytes)
                .map_err(|error| self.bad(format!("chat_template.jinja: {error}").into()))?;
            templates.retain(|(name, _)| name != DEFAULT);
            templates.push((DEFAULT.to_owned(), template.to_owned()));
        }
        Ok(templates)
    }

    /// The special tokens that have a name: `bos_token`, `eos_token` and so on.
    pub fn special_tokens(&self) -> Result<BTreeMap<String, String>, DataError> {
        let mut tokens = BTreeMap::new();
        for file in ["special_tokens_map.json", "tokenizer_config.json"] {
            let file = self.side_file(file)?;
            let keys = file.as_object().into_iter().flat_map(|it| it.keys());
            for key in keys.filter(|key| key.ends_with("_token")) {
                if let Some(token) = special_token(&file, key) {
                    tokens.insert(key.clone(), token.to_owned());
                }
            }
        }
        Ok(tokens)
    }

    /// A file beside `tokenizer.json`; null if there is none.
    fn side_file(&self, name: &str) -> Result<Value, DataError> {
        match self.files.get(name) {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|error| self.bad(format!("{name}: {error}").into())),
            None => Ok(Value::Null),
        }
    }

    /// The text of `ids`, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner
            .decode(ids, true)
            .map_err(|error| self.bad(error))
    }

    /// The text of `ids`, special tokens as they are called.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner
            .decode(ids, false)
            .map_err(|error| self.bad(error))
    }

    /// The token that ends a document.
    pub fn eos_id(&self) -> u32 {
        self.eos_id
    }

    /// The token that fills up a row.
    pub fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// The token that hides others in masked language modelling, if there is one.
    pub fn mask_id(&self) -> Option<u32> {
        self.mask_id
    }

    /// Where it is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The `tokenizer.json`.
    pub(crate) fn json(&self) -> Value {
        let bytes = self.files.get("tokenizer.json");
        let json = bytes.map(|bytes| serde_json::from_slice(bytes));
        json.and_then(Result::ok).unwrap_or_default() // it has been read as one before
    }

    /// The highest token id, plus one: rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether both give the same tokens for any text, and end and fill up rows with the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.files["tokenizer.json"] == other.files["tokenizer.json"]
            && (self.eos_id, self.pad_id) == (other.eos_id, other.pad_id)
    }

    /// Whether a number means the same token in both.
    pub fn has_same_tokens(&self, other: &Self) -> bool {
        self.files["tokenizer.json"] == other.files["tokenizer.json"]
            || self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// The files of this tokenizer as Hugging Face lays them out, by name, for a checkpoint.
    pub fn files(&self) -> &TokenizerFiles {
        &self.files
    }

    /// The tokenizer underneath.
    pub fn as_hf(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// The error for a tokenizer that makes no token of any text, the last of which is at `at`.
    pub fn makes_nothing_of(&self, num_texts: usize, at: &Location) -> DataError {
        self.bad(
            format!("makes no token of any of {num_texts} texts, of which the last is {at}").into(),
        )
    }

    fn bad(&self, error: tokenizers::Error) -> DataError {
        DataError::Tokenizer {
            path: self.path.clone(),
            message: error.to_string(),
        }
    }
}

/// What the post-processor puts before a text. What it puts after is not asked: a document ends with `eos_token`.
fn post_processors_start(inner: &tokenizers::Tokenizer) -> tokenizers::Result<Vec<u32>> {
    if inner.get_post_processor().is_none() {
        return Ok(Vec::new());
    }
    // Some text that has tokens: with none, nothing tells before from after.
    for text in ["a", "1", "."] {
        let encoding = inner.encode(text, true)?;
        let specials = encoding.get_special_tokens_mask().iter();
        let before = specials.clone().take_while(|it| **it == 1).count();
        if before < specials.len() {
            return Ok(encoding.get_ids()[..before].to_vec());
        }
    }
    Ok(Vec::new())
}

/// The last boundary between characters that is not after `at`.
pub(crate) fn boundary_before(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// A token in `tokenizer_config.json`: a string, or an object with its `content`.
fn special_token<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let value = &config[key];
    value.as_str().or_else(|| value["content"].as_str())
}
