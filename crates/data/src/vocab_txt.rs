//! The tokenizer of BERT as it was kept before `tokenizer.json`: `vocab.txt`, a token a line, with `tokenizer_config.json`
//! beside it, made a `tokenizer.json` as `transformers` makes it.
//!
//! How text is brought into shape (lower case, accents, Chinese characters) is in the config; that it is WordPiece is in the
//! class that is named for the file, so a class that is not known here is refused: others keep other things in a `vocab.txt`.
//! Source: Devlin et al. 2018, arXiv:1810.04805; transformers 5, `tokenization_bert.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::DataError;
use crate::vocab_merges::{Made, json_of};

const VOCAB: &str = "vocab.txt";
/// Those that share BERT's WordPiece, with `Fast` after them or without.
const CLASSES: [&str; 3] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"];
const MODELS: [&str; 3] = ["bert", "distilbert", "electra"];
/// Keys of special tokens, and what they are unless the config says otherwise.
const SPECIAL: [(&str, &str); 5] = [
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

/// Whether `folder` has such a file.
pub(crate) fn is_in(folder: &Path) -> bool {
    folder.join(VOCAB).is_file()
}

/// The `tokenizer.json` of the files in `folder`, and a `tokenizer_config.json` that names the special tokens, as bytes; `None`
/// if there is no `vocab.txt`.
///
/// Errors: a class that is not known; a vocabulary without what begins and ends a text.
pub(crate) fn read(folder: &Path) -> Result<Option<Made>, DataError> {
    if !is_in(folder) {
        return Ok(None);
    }
    let bad = |message: String| DataError::Tokenizer {
        path: folder.to_owned(),
        message,
    };
    let mut config = json_of(folder, "tokenizer_config.json")?;
    if !config.is_object() {
        config = json!({});
    }
    let named = json_of(folder, "special_tokens_map.json")?;
    for (key, default) in SPECIAL {
        if content(&config[key]).is_none() {
            config[key] = content(&named[key]).unwrap_or(default).into();
        }
    }
    check_class(folder, &config).map_err(bad)?;

    let path = folder.join(VOCAB);
    let text = fs::read_to_string(&path).map_err(DataError::io(&path))?;
    let lines = text.lines().zip(0u64..);
    let vocab: Map<String, Value> = lines
        .map(|(token, id)| (token.to_owned(), id.into()))
        .collect();
    let special = |key: &str| content(&config[key]).unwrap_or_default().to_owned();
    for key in ["unk_token", "cls_token", "sep_token"] {
        let token = special(key);
        if !vocab.contains_key(&token) {
            let why = format!("{VOCAB} has no `{token}`, its `{key}`: is it of another tokenizer?");
            return Err(bad(why));
        }
    }
    let (cls, sep) = (special("cls_token"), special("sep_token"));
    let flag = |key: &str| config[key].as_bool().unwrap_or(true);
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&config, &vocab).map_err(bad)?,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars"),
            "strip_accents": config["strip_accents"],
            "lowercase": flag("do_lower_case"),
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": post_processor((&cls, &vocab[&cls]), (&sep, &vocab[&sep])),
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece",
            "unk_token": special("unk_token"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    config["tokenizer_class"] = "BertTokenizer".into();
    let config = format!("{config:#}\n");
    Ok(Some((json.to_string().into_bytes(), config.into_bytes())))
}

/// Error: neither the config nor the model beside it says that this is WordPiece.
fn check_class(folder: &Path, config: &Value) -> Result<(), String> {
    let model = json_of(folder, "config.json").unwrap_or_default();
    let model = model["model_type"].as_str();
    let class = config["tokenizer_class"].as_str();
    let plain = class.map(|class| class.trim_end_matches("Fast"));
    let is_known = match (plain, model) {
        (Some(class), _) => CLASSES.contains(&class),
        (None, Some(model)) => MODELS.contains(&model),
        (None, None) => false,
    };
    if is_known {
        return Ok(());
    }
    let found = match (class, model) {
        (Some(class), _) => format!("`tokenizer_class` in tokenizer_config.json is `{class}`"),
        (None, Some(model)) => format!("`model_type` in config.json is `{model}`"),
        (None, None) => {
            "neither tokenizer_config.json nor config.json says of what class it is".to_owned()
        }
    };
    let known = CLASSES.join(", ");
    Err(format!(
        "has a {VOCAB}, which is only known how to read for {known}; {found}. If it is BERT's, write \
         {{\"tokenizer_class\": \"BertTokenizer\", \"do_lower_case\": true}} (or false) into {}",
        folder.join("tokenizer_config.json").display()
    ))
}

/// Those taken out of a text before it is split, by id: the special ones, and what the config adds.
fn added_tokens(config: &Value, vocab: &Map<String, Value>) -> Result<Vec<Value>, String> {
    let mut added = BTreeMap::new();
    for (key, _) in SPECIAL {
        let token = content(&config[key]).unwrap_or_default();
        if let Some(id) = vocab.get(token).and_then(Value::as_u64) {
            added.insert(id, full(id, token, &json!({ "special": true })));
        }
    }
    let decoder = config["added_tokens_decoder"].as_object();
    for (id, token) in decoder.into_iter().flatten() {
        let text = content(token).unwrap_or_default();
        let id: u64 = (id.parse()).map_err(|_| format!("added_tokens_decoder: `{id}` is no id"))?;
        if vocab
            .get(text)
            .and_then(Value::as_u64)
            .is_some_and(|of_vocab| of_vocab != id)
        {
            return Err(format!(
                "the added token `{text}` has id {id} and another in {VOCAB}: they are of two tokenizers"
            ));
        }
        added.insert(id, full(id, text, token));
    }
    // The library gives one that is not in the vocabulary whatever number is next.
    let new = added.keys().filter(|id| **id >= vocab.len() as u64);
    for (id, next) in new.zip(vocab.len() as u64..) {
        if *id != next {
            return Err(format!(
                "added_tokens_decoder: id {id} where {next} is the next: {VOCAB} is of another tokenizer"
            ));
        }
    }
    Ok(added.into_values().collect())
}

fn full(id: u64, token: &str, flags: &Value) -> Value {
    let flag = |key: &str| flags[key].as_bool().unwrap_or(false);
    json!({
        "id": id,
        "content": token,
        "single_word": flag("single_word"),
        "lstrip": flag("lstrip"),
        "rstrip": flag("rstrip"),
        "normalized": flag("normalized"),
        "special": flag("special"),
    })
}

fn post_processor((cls, cls_id): (&str, &Value), (sep, sep_id): (&str, &Value)) -> Value {
    let special =
        |name: &str, kind: u32| json!({ "SpecialToken": { "id": name, "type_id": kind } });
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    json!({
        "type": "TemplateProcessing",
        "single": [special(cls, 0), text("A", 0), special(sep, 0)],
        "pair": [special(cls, 0), text("A", 0), special(sep, 0), text("B", 1), special(sep, 1)],
        "special_tokens": {
            cls: { "id": cls, "ids": [cls_id], "tokens": [cls] },
            sep: { "id": sep, "ids": [sep_id], "tokens": [sep] },
        },
    })
}

/// A token's text, given alone or with how it is found.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}
