//! The tokenizers of GPT-2 and Qwen2 as they were kept before `tokenizer.json`: `vocab.json` and `merges.txt`, with
//! `tokenizer_config.json` and `added_tokens.json` beside them, made a `tokenizer.json` as `transformers` makes it.
//!
//! How text is split is not in these files but in the class that is named for them, so a class that is not known here is
//! refused: an almost equal tokenizer would silently train on other tokens. So is a SentencePiece `tokenizer.model`, whose
//! normalisation is a program of its own.
//! Source: transformers 5, `tokenization_gpt2.py`, `tokenization_qwen2.py` and `tokenization_utils_base.py`.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::bpe::bpe_model;
use crate::error::DataError;
use crate::split;

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const SENTENCE_PIECE: &str = "tokenizer.model";
const NAMED_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Whether `folder` has files of a tokenizer, none of which is a `tokenizer.json`.
pub(crate) fn is_in(folder: &Path) -> bool {
    let has = |name| folder.join(name).is_file();
    (has(VOCAB) && has(MERGES)) || has(SENTENCE_PIECE)
}

/// A `tokenizer.json` and a `tokenizer_config.json`, as bytes.
pub(crate) type Made = (Vec<u8>, Vec<u8>);

/// The `tokenizer.json` of the files in `folder`, and a `tokenizer_config.json` that names the special tokens; `None` if there
/// are none.
///
/// Errors: a class that is not known, SentencePiece, files that are damaged or do not belong together.
pub(crate) fn read(folder: &Path) -> Result<Option<Made>, DataError> {
    if !is_in(folder) {
        return Ok(None);
    }
    let bad = |message: String| DataError::Tokenizer {
        path: folder.to_owned(),
        message,
    };
    if !folder.join(VOCAB).is_file() || !folder.join(MERGES).is_file() {
        return Err(bad(format!(
            "has a SentencePiece {SENTENCE_PIECE} and no tokenizer.json. {}",
            convert(folder)
        )));
    }
    let mut config = json_of(folder, "tokenizer_config.json")?;
    if config["added_tokens_decoder"].is_null() {
        // As of before that key was.
        let named = json_of(folder, "special_tokens_map.json")?;
        for (key, token) in named.as_object().into_iter().flatten() {
            config[key] = token.clone();
        }
    }
    let files = Files { folder, config };
    let class = files.class()?;
    let vocab = match json_of(folder, VOCAB)? {
        Value::Object(vocab) => vocab,
        _ => return Err(bad(format!("{VOCAB} is no object of ids by token"))),
    };
    let added = files.added_tokens(class, &vocab)?;
    let prefix = files.config["add_prefix_space"].as_bool().unwrap_or(false);
    let byte_level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": use_regex });
    let pre_tokenizer = match class {
        Class::Gpt2 => byte_level(true),
        Class::Qwen2 => json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": split::QWEN2 }, "behavior": "Isolated", "invert": false },
            byte_level(false),
        ]}),
    };
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "normalizer": (class == Class::Qwen2).then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": files.post_processor(&added)?,
        "added_tokens": added,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": bpe_model(&vocab, &files.merges()?),
    });
    let config = format!("{:#}\n", files.config);
    Ok(Some((json.to_string().into_bytes(), config.into_bytes())))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Gpt2,
    Qwen2,
}

struct Files<'a> {
    folder: &'a Path,
    config: Value,
}

impl Files<'_> {
    fn bad(&self, message: String) -> DataError {
        DataError::Tokenizer {
            path: self.folder.to_owned(),
            message,
        }
    }

    /// Of `tokenizer_config.json`; else what `transformers` takes for the model of `config.json`.
    fn class(&self) -> Result<Class, DataError> {
        let model = json_of(self.folder, "config.json")?;
        let named = self.config["tokenizer_class"].as_str();
        match (named, model["model_type"].as_str()) {
            (Some("GPT2Tokenizer" | "GPT2TokenizerFast"), _) | (None, Some("gpt2")) => {
                Ok(Class::Gpt2)
            }
            (Some("Qwen2Tokenizer" | "Qwen2TokenizerFast"), _)
            | (None, Some("qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe")) => Ok(Class::Qwen2),
            (named, _) => {
                let found = match named {
                    Some(named) => format!("`{named}`"),
                    None => "not named".to_owned(),
                };
                Err(self.bad(format!(
                    "has {VOCAB} and {MERGES}, but how its text is split is only known for the classes GPT2Tokenizer and \
                     Qwen2Tokenizer; its `tokenizer_class` in tokenizer_config.json is {found}. {}",
                    convert(self.folder)
                )))
            }
        }
    }

    fn merges(&self) -> Result<Vec<Value>, DataError> {
        let path = self.folder.join(MERGES);
        let text = fs::read_to_string(&path).map_err(DataError::io(&path))?;
        let lines = text.lines().zip(1..);
        let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with("#version"));
        let merge = |(line, number): (&str, u32)| match line.split(' ').collect::<Vec<_>>()[..] {
            [left, right] => Ok(json!([left, right])),
            _ => Err(self.bad(format!("{MERGES}: line {number} is not two tokens"))),
        };
        lines.map(merge).collect()
    }

    /// Those taken out of a text before it is split: with their ids in `tokenizer_config.json`, else `added_tokens.json`, and
    /// the special ones that have a name.
    fn added_tokens(
        &self,
        class: Class,
        vocab: &Map<String, Value>,
    ) -> Result<Vec<Value>, DataError> {
        let mut added: Vec<(u64, Value)> = Vec::new();
        let decoder = self.config["added_tokens_decoder"].as_object();
        for (id, token) in decoder.into_iter().flatten() {
            let id = id.parse();
            let id = id.map_err(|_| self.bad("added_tokens_decoder: no id".to_owned()))?;
            added.push((id, token.clone()));
        }
        if decoder.is_none() {
            let legacy = json_of(self.folder, "added_tokens.json")?;
            let special = self.special(class);
            for (token, id) in legacy.as_object().into_iter().flatten() {
                let is_special = special.iter().any(|it| content(it) == token);
                let id = id.as_u64();
                let id =
                    id.ok_or_else(|| self.bad(format!("added_tokens.json: `{token}` has no id")))?;
                added.push((id, json!({ "content": token, "special": is_special })));
            }
        }
        added.sort_by_key(|(id, _)| *id);
        let ids = vocab.values().filter_map(Value::as_u64);
        let ids = ids.chain(added.iter().map(|(id, _)| *id));
        let mut next = ids.max().map_or(0, |id| id + 1);
        for token in self.special(class) {
            let name = content(&token).to_owned();
            if added.iter().any(|(_, it)| content(it) == name) {
                continue;
            }
            let id = vocab.get(&name).and_then(Value::as_u64).unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            added.push((id, token));
        }
        // The library gives an added token that is not in the vocabulary whatever number is next.
        let mut expected = vocab.len() as u64;
        for (id, token) in &added {
            let found = match vocab.get(content(token)) {
                Some(id) => id.as_u64(),
                None => {
                    expected += 1;
                    Some(expected - 1)
                }
            };
            if found != Some(*id) {
                return Err(self.bad(format!(
                    "the added token `{}` has id {id} where {} is the next: {VOCAB} is of another tokenizer",
                    content(token),
                    found.unwrap_or_default()
                )));
            }
        }
        let full = |(id, token): (u64, Value)| {
            let flag = |key: &str, default: bool| token[key].as_bool().unwrap_or(default);
            let special = flag("special", false);
            json!({
                "id": id,
                "content": content(&token),
                "single_word": flag("single_word", false),
                "lstrip": flag("lstrip", false),
                "rstrip": flag("rstrip", false),
                "normalized": flag("normalized", !special),
                "special": special,
            })
        };
        Ok(added.into_iter().map(full).collect())
    }

    /// Special tokens: those that have a name, by default or in the config, and further ones.
    fn special(&self, class: Class) -> Vec<Value> {
        let config = &self.config;
        let default: &[&str] = match class {
            Class::Gpt2 => &["bos_token", "eos_token", "unk_token"],
            Class::Qwen2 => &["eos_token", "unk_token", "pad_token"],
        };
        let mut tokens = Vec::new();
        let mut add = |token: &Value| {
            let mut token = match token {
                Value::String(text) => json!({ "content": text }),
                token => token.clone(),
            };
            let is_new = |tokens: &[Value]| tokens.iter().all(|it| content(it) != content(&token));
            if !content(&token).is_empty() && is_new(&tokens) {
                token["special"] = true.into();
                tokens.push(token);
            }
        };
        for name in NAMED_TOKENS {
            match config.get(name) {
                Some(token) if !token.is_null() => add(token),
                None if default.contains(&name) => add(&"<|endoftext|>".into()),
                _ => {}
            }
        }
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            config[key]
                .as_array()
                .into_iter()
                .flatten()
                .for_each(&mut add);
        }
        tokens
    }

    /// Only what `add_bos_token` asks for.
    fn post_processor(&self, added: &[Value]) -> Result<Value, DataError> {
        if self.config["add_bos_token"] != true {
            return Ok(Value::Null);
        }
        let bos = match content(&self.config["bos_token"]) {
            "" => "<|endoftext|>",
            bos => bos,
        };
        let token = added.iter().find(|it| content(it) == bos);
        let id = &token.ok_or_else(|| self.bad(format!("has no token `{bos}`")))?["id"];
        let special = json!({ "SpecialToken": { "id": bos, "type_id": 0 } });
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        Ok(json!({
            "type": "TemplateProcessing",
            "single": [special, text("A")],
            "pair": [special, text("A"), special, text("B")],
            "special_tokens": { bos: { "id": bos, "ids": [id], "tokens": [bos] } },
        }))
    }
}

/// A token's text, given alone or with how it is found.
fn content(token: &Value) -> &str {
    let text = token.as_str().or_else(|| token["content"].as_str());
    text.unwrap_or_default()
}

/// A file of `folder`; null if it is not there.
pub(crate) fn json_of(folder: &Path, name: &str) -> Result<Value, DataError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(Value::Null);
    }
    let bytes = fs::read(&path).map_err(DataError::io(&path))?;
    serde_json::from_slice(&bytes).map_err(|error| DataError::Tokenizer {
        message: error.to_string(),
        path,
    })
}

fn convert(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Convert it once, with Python: pip install transformers sentencepiece protobuf; python -c \"from transformers import \
         AutoTokenizer; AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\""
    )
}
