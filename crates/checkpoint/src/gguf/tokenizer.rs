//! The tokenizer in a GGUF file's metadata, as Hugging Face's `tokenizer.json` and the files beside it.
//!
//! `gpt2` is byte-level BPE, whose pre-tokenizer has a name: those of [`PRE_TOKENIZERS`] are read. `llama` is BPE as
//! SentencePiece makes it: the piece of the highest score is merged first, which as merges in order of rank is what
//! `transformers` has for these models. Any other kind is refused by its name, as an almost equal tokenizer would
//! silently train on other tokens.
//! Source: llama.cpp, `llama-vocab.cpp`; transformers, `convert_slow_tokenizer.py` and `integrations/ggml.py`.

use std::collections::{BTreeMap, HashMap};

use candle_core::quantized::gguf_file::Value;
use serde_json::{Value as Json, json};

/// Qwen2's, in which digits stand alone; Llama 3's has up to three of them together.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Names of pre-tokenizers in `tokenizer.ggml.pre`.
const PRE_TOKENIZERS: [&str; 4] = ["qwen2", "llama-bpe", "gpt-2", "smollm"];

/// `tokenizer.ggml.token_type`.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// Files by name, as Hugging Face lays them out; `None` if the file has no tokenizer. Error: a kind that is not known
/// here, or metadata that make no tokenizer; a sentence.
pub(super) fn read(
    metadata: &HashMap<String, Value>,
) -> Result<Option<BTreeMap<String, Vec<u8>>>, String> {
    let fields = Fields(metadata);
    let Some(model) = fields.text("model")? else {
        return Ok(None);
    };
    let make = match model {
        "gpt2" => byte_level,
        "llama" => sentence_piece,
        "no_vocab" | "none" => return Ok(None),
        other => {
            return Err(format!(
                "its tokenizer is of the kind `{other}` (tokenizer.ggml.model); read are gpt2, llama"
            ));
        }
    };
    let vocabulary = Vocabulary::read(&fields)?;
    let tokenizer = make(&fields, &vocabulary)?;
    let name_of = |key| -> Result<Json, String> {
        let id = fields.id(key)?;
        Ok(id
            .and_then(|id| vocabulary.tokens.get(id as usize))
            .map_or(Json::Null, |token| json!(token)))
    };
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name_of("bos_token_id")?,
        "eos_token": name_of("eos_token_id")?,
        "pad_token": name_of("padding_token_id")?,
        "unk_token": name_of("unknown_token_id")?,
        "chat_template": metadata.get("tokenizer.chat_template").and_then(|it| it.to_string().ok()),
        "clean_up_tokenization_spaces": false,
    });
    let config: serde_json::Map<_, _> = match config {
        Json::Object(config) => config.into_iter().filter(|(_, it)| !it.is_null()).collect(),
        _ => serde_json::Map::new(),
    };
    let bytes = |json: &Json| format!("{json}\n").into_bytes();
    Ok(Some(BTreeMap::from([
        ("tokenizer.json".to_owned(), bytes(&tokenizer)),
        ("tokenizer_config.json".to_owned(), bytes(&config.into())),
    ])))
}

/// What a `generation_config.json` would say: where a text begins, and each token that ends one.
pub(super) fn generation_config(metadata: &HashMap<String, Value>) -> Result<Json, String> {
    let fields = Fields(metadata);
    let mut config = serde_json::Map::new();
    let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let ends = ends.iter().map(|key| fields.id(key));
    let mut ends: Vec<u64> = ends
        .filter_map(Result::transpose)
        .collect::<Result<_, _>>()?;
    ends.sort_unstable();
    ends.dedup();
    match ends[..] {
        [] => {}
        [one] => drop(config.insert("eos_token_id".to_owned(), one.into())),
        _ => drop(config.insert("eos_token_id".to_owned(), ends.into())),
    }
    for (name, key) in [
        ("bos_token_id", "bos_token_id"),
        ("pad_token_id", "padding_token_id"),
    ] {
        if let Some(id) = fields.id(key)? {
            config.insert(name.to_owned(), id.into());
        }
    }
    Ok(if config.is_empty() {
        Json::Null
    } else {
        config.into()
    })
}

fn byte_level(fields: &Fields<'_>, vocabulary: &Vocabulary<'_>) -> Result<Json, String> {
    let name = fields.text("pre")?.unwrap_or("not named");
    let split = |pattern: &str| {
        json!({
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": { "Regex": pattern },
                    "behavior": "Isolated",
                    "invert": false,
                },
                byte_level_part(false),
            ],
        })
    };
    let pre_tokenizer = match name {
        "qwen2" => split(QWEN2),
        "llama-bpe" => split(LLAMA3),
        "gpt-2" => byte_level_part(true),
        "smollm" => json!({
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Digits", "individual_digits": true },
                byte_level_part(true),
            ],
        }),
        other => {
            return Err(format!(
                "its pre-tokenizer is `{other}` (tokenizer.ggml.pre); read are {}",
                PRE_TOKENIZERS.join(", ")
            ));
        }
    };
    let is_llama = name == "llama-bpe";
    let merges: Vec<_> = fields
        .texts("merges")?
        .into_iter()
        .map(|merge| match merge.split(' ').collect::<Vec<_>>()[..] {
            [left, right] => Ok(json!([left, right])),
            _ => Err(format!("the merge `{merge}` is not two tokens")),
        })
        .collect::<Result<_, _>>()?;
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": (name == "qwen2").then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template(fields, vocabulary, is_llama)?,
        "decoder": byte_level_part(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // Llama 3 takes a word that is a token as it is, whether or not merges lead there.
            "ignore_merges": is_llama,
            "vocab": vocabulary.by_token(),
            "merges": merges,
        },
    }))
}

fn byte_level_part(use_regex: bool) -> Json {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": use_regex,
    })
}

fn sentence_piece(fields: &Fields<'_>, vocabulary: &Vocabulary<'_>) -> Result<Json, String> {
    let scores = fields.numbers("scores")?;
    if scores.len() != vocabulary.tokens.len() {
        return Err(format!(
            "it has {} scores for {} tokens",
            scores.len(),
            vocabulary.tokens.len()
        ));
    }
    let ids: HashMap<&str, usize> = vocabulary.tokens.iter().copied().zip(0..).collect();
    let is_piece =
        |id: usize| ![UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE].contains(&vocabulary.types[id]);
    let mut merges = Vec::new();
    for (id, token) in vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| is_piece(*id))
    {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right))
                && is_piece(l)
                && is_piece(r)
            {
                merges.push((scores[id], id, scores[l], scores[r], [left, right]));
            }
        }
    }
    // The best score first; of one token, the split into the best parts.
    merges.sort_by(|a, b| {
        let by_score = b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        by_score.then(b.2.total_cmp(&a.2)).then(b.3.total_cmp(&a.3))
    });
    let merges: Vec<_> = merges.into_iter().map(|(.., pair)| json!(pair)).collect();
    let space_first = fields.flag("add_space_prefix")?.unwrap_or(true);
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders = vec![
        replace("▁", " "),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if space_first {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = vocabulary.types.iter().position(|kind| *kind == UNKNOWN);
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": template(fields, vocabulary, true)?,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|id| vocabulary.tokens[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": vocabulary.types.contains(&BYTE),
            "ignore_merges": false,
            "vocab": vocabulary.by_token(),
            "merges": merges,
        },
    }))
}

/// What stands around each text: `add_bos_token` and `add_eos_token`, which some kinds do not write down.
fn template(
    fields: &Fields<'_>,
    vocabulary: &Vocabulary<'_>,
    adds_bos: bool,
) -> Result<Json, String> {
    let around = |flag, default, key| -> Result<Option<(u64, &str)>, String> {
        if !fields.flag(flag)?.unwrap_or(default) {
            return Ok(None);
        }
        let id = fields.id(key)?;
        Ok(id.and_then(|id| Some((id, *vocabulary.tokens.get(id as usize)?))))
    };
    let bos = around("add_bos_token", adds_bos, "bos_token_id")?;
    let eos = around("add_eos_token", false, "eos_token_id")?;
    if bos.is_none() && eos.is_none() {
        return Ok(Json::Null);
    }
    let special =
        |token: &str, type_id: u64| json!({ "SpecialToken": { "id": token, "type_id": type_id } });
    let text = |name: &str, type_id: u64| {
        let before = bos.map(|(_, token)| special(token, type_id));
        let after = eos.map(|(_, token)| special(token, type_id));
        let it = json!({ "Sequence": { "id": name, "type_id": type_id } });
        before
            .into_iter()
            .chain([it])
            .chain(after)
            .collect::<Vec<_>>()
    };
    let specials = [bos, eos].into_iter().flatten();
    let specials: serde_json::Map<_, _> = specials
        .map(|(id, token)| {
            (
                token.to_owned(),
                json!({ "id": token, "ids": [id], "tokens": [token] }),
            )
        })
        .collect();
    let pair = [text("A", 0), text("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": pair,
        "special_tokens": specials,
    }))
}

/// Tokens by id, and what each is.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
}

impl<'a> Vocabulary<'a> {
    fn read(fields: &Fields<'a>) -> Result<Self, String> {
        let tokens = fields.texts("tokens")?;
        let types = fields.integers("token_type")?;
        if types.len() != tokens.len() {
            return Err(format!(
                "it has {} types for {} tokens",
                types.len(),
                tokens.len()
            ));
        }
        Ok(Self { tokens, types })
    }

    /// Those in use; rows of the embedding that no token has are filled up with others.
    fn by_token(&self) -> serde_json::Map<String, Json> {
        let tokens = self.tokens.iter().zip(&self.types).enumerate();
        tokens
            .filter(|(_, (_, kind))| **kind != UNUSED)
            .map(|(id, (token, _))| ((*token).to_owned(), id.into()))
            .collect()
    }

    /// Those that are taken out of a text before it is split.
    fn added_tokens(&self) -> Vec<Json> {
        let tokens = self.tokens.iter().zip(&self.types).enumerate();
        tokens
            .filter(|(_, (_, kind))| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind))
            .map(|(id, (token, kind))| {
                json!({
                    "id": id,
                    "content": token,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": *kind != USER_DEFINED,
                })
            })
            .collect()
    }
}

/// The keys `tokenizer.ggml.*`.
struct Fields<'a>(&'a HashMap<String, Value>);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(&format!("tokenizer.ggml.{key}"))
    }

    fn wrong<T>(key: &str) -> Result<T, String> {
        Err(format!(
            "`tokenizer.ggml.{key}` is missing, or of another type"
        ))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Self::wrong(key),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Self::wrong(key),
        }
    }

    fn id(&self, key: &str) -> Result<Option<u64>, String> {
        match self.get(key).map(integer) {
            None => Ok(None),
            Some(Some(id)) => Ok(u64::try_from(id).ok()), // -1: none
            Some(None) => Self::wrong(key),
        }
    }

    fn list<T>(&self, key: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Vec<T>, String> {
        let Some(Value::Array(values)) = self.get(key) else {
            return Self::wrong(key);
        };
        let values: Option<Vec<T>> = values.iter().map(read).collect();
        values.map_or_else(|| Self::wrong(key), Ok)
    }

    fn texts(&self, key: &str) -> Result<Vec<&'a str>, String> {
        self.list(key, |value| value.to_string().ok().map(String::as_str))
    }

    fn integers(&self, key: &str) -> Result<Vec<i64>, String> {
        self.list(key, integer)
    }

    fn numbers(&self, key: &str) -> Result<Vec<f32>, String> {
        self.list(key, |value| value.to_f32().ok())
    }
}

fn integer(value: &Value) -> Option<i64> {
    match *value {
        Value::U8(n) => Some(n.into()),
        Value::I8(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::I16(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::I32(n) => Some(n.into()),
        Value::I64(n) => Some(n),
        Value::U64(n) => i64::try_from(n).ok(),
        _ => None,
    }
}
