//! The texts to embed, in their order: those of flags, lines of a file or of standard input, or a key of JSON lines.
//!
//! A blank line is a text without a character, so that vectors and lines keep step; the end of the last line begins no other.

use std::io::Read;

use anyhow::{Context, bail};
use serde_json::Value;
use tt_data::Tokenizer;

use super::config::{EmbedConfig, Format};

pub(super) fn read(config: &EmbedConfig, given: &[String]) -> anyhow::Result<Vec<String>> {
    if !given.is_empty() {
        if let Some(file) = &config.input {
            bail!(
                "the texts are given twice: by --text and by input={}",
                file.display()
            );
        }
        return Ok(given.to_vec());
    }
    let (name, text) = match &config.input {
        Some(file) => {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
            (name, text)
        }
        None => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.context("standard input")?;
            ("standard input".to_owned(), text)
        }
    };
    let is_jsonl = [".jsonl", ".ndjson"].iter().any(|end| name.ends_with(end));
    let by_name = if is_jsonl {
        Format::Jsonl
    } else {
        Format::Lines
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let texts = match config.format.unwrap_or(by_name) {
        Format::Lines => text.lines().map(str::to_owned).collect(),
        Format::Jsonl => of_objects(text, &name, &config.field)?,
    };
    if texts.is_empty() {
        bail!("{name} has no texts");
    }
    Ok(texts)
}

fn of_objects(text: &str, name: &str, field: &str) -> anyhow::Result<Vec<String>> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let texts = lines.map(|(index, line)| {
        let at = || format!("{name}:{}", index + 1);
        let object: Value = serde_json::from_str(line).with_context(at)?;
        if !object.is_object() {
            bail!("{}: {object} is no object with a key `{field}`", at());
        }
        let mut found = object.get(field);
        if found.is_none() {
            let mut parts = field.split('.');
            found = parts.try_fold(&object, |value, key| value.get(key));
        }
        match found {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => bail!("{}: `{field}`: {other} is no text", at()),
            None => {
                let keys = object.as_object().into_iter().flat_map(|it| it.keys());
                let keys: Vec<&str> = keys.map(String::as_str).collect();
                let keys = keys.join(", ");
                bail!("{}: no key `{field}`; there are {keys}: field=KEY", at())
            }
        }
    });
    texts.collect()
}

/// The tokens of a text, at most `longest`: of one that is longer the end is cut off, and what the tokenizer puts around it
/// stays. Gives whether it was.
pub(super) fn tokens(
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: bool,
    longest: usize,
) -> anyhow::Result<(Vec<u32>, bool)> {
    let encoding = tokenizer.as_hf().encode(text, add_special_tokens);
    let encoding = encoding.map_err(|error| anyhow::anyhow!("the tokenizer: {error}"))?;
    let mut ids = encoding.get_ids().to_vec();
    let too_many = ids.len().saturating_sub(longest);
    if too_many > 0 {
        let is_special = |at: &usize| encoding.get_special_tokens_mask()[*at] == 1;
        let at_end = (0..ids.len()).rev().take_while(is_special).count();
        let end = ids.len() - at_end.min(longest);
        ids.drain(end - too_many..end);
    }
    Ok((ids, too_many > 0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_put_around_a_text_outlives_its_end() {
        let plain = Tokenizer::bytes().unwrap();
        let mut json: Value = serde_json::from_slice(&plain.files()["tokenizer.json"]).unwrap();
        let token = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        };
        let added = json["added_tokens"].as_array_mut().unwrap();
        added.extend([token(257, "[CLS]"), token(258, "[SEP]")]);
        let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        json["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special("[CLS]"), text, special("[SEP]")],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [257], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [258], "tokens": ["[SEP]"]}},
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, json.to_string()).unwrap();
        let tokenizer = Tokenizer::load(&file, None).unwrap();
        let letters = tokenizer.encode("abcd").unwrap();
        let [a, b, c, d] = letters[..] else {
            panic!("{letters:?}");
        };
        for (longest, expected, is_cut) in [
            (9, vec![257, a, b, c, d, 258], false),
            (4, vec![257, a, b, 258], true),
            (2, vec![257, 258], true),
        ] {
            let made = tokens(&tokenizer, "abcd", true, longest).unwrap();
            assert_eq!(made, (expected, is_cut), "{longest}");
        }
        let made = tokens(&tokenizer, "abcd", false, 3).unwrap();
        assert_eq!(made, (vec![a, b, c], true));
    }
}
