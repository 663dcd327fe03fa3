//! How many bytes of text tokens stand for, so that losses of different tokenizers can be compared.
//!
//! Of a byte-level tokenizer each token has its own number of bytes, parts of characters included. Of another a token stands
//! for what the decoded text grows by, so that a blank that the tokenizer itself puts before a text counts for nothing; where
//! it cuts a character among tokens and only some of those are asked about, the figure is off by a few bytes. What a
//! normaliser has changed is not seen: the bytes are those of the text as the tokens give it back.
//! A special token stands for no text.

use std::collections::HashSet;

use serde_json::Value;

use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// The bytes that a tokenizer's tokens stand for.
pub struct TokenBytes<'a> {
    tokenizer: &'a Tokenizer,
    special: HashSet<u32>,
    /// By token id, of a byte-level tokenizer.
    of_each: Option<Vec<usize>>,
}

impl<'a> TokenBytes<'a> {
    /// Those of `tokenizer`. Besides the tokens that it calls special, what ends, begins and fills up documents is none of the
    /// text.
    pub fn of(tokenizer: &'a Tokenizer) -> Self {
        let inner = tokenizer.as_hf();
        let added = inner.get_added_tokens_decoder();
        let marked = added.iter().filter(|(_, token)| token.special);
        let mut special: HashSet<u32> = marked.map(|(&id, _)| id).collect();
        special.extend(tokenizer.document_start());
        special.extend([tokenizer.eos_id(), tokenizer.pad_id()]);
        let of_each = is_byte_level(tokenizer).then(|| {
            let mut bytes = vec![0; tokenizer.vocab_size()];
            for (token, id) in inner.get_vocab(true) {
                bytes[id as usize] = match added.get(&id) {
                    Some(added) => added.content.len(), // written as it is
                    None => token.chars().count(),      // a character for each byte
                };
            }
            bytes
        });
        Self {
            tokenizer,
            special,
            of_each,
        }
    }

    /// Whether a token stands for text.
    pub fn is_text(&self, id: u32) -> bool {
        !self.special.contains(&id)
    }

    /// The bytes of text that `tokens` stand for after `before`, which is of the same document.
    pub fn count(&self, before: &[u32], tokens: &[u32]) -> Result<usize, DataError> {
        if let Some(of_each) = &self.of_each {
            let text = tokens.iter().filter(|&&id| self.is_text(id));
            let bytes = text.map(|&id| of_each.get(id as usize).copied().unwrap_or(0));
            return Ok(bytes.sum());
        }
        let length = |ids: &[u32]| {
            let text: Vec<u32> = ids.iter().copied().filter(|&id| self.is_text(id)).collect();
            Ok::<_, DataError>(self.tokenizer.decode(&text)?.len())
        };
        let whole = length(&[before, tokens].concat())?;
        Ok(whole.saturating_sub(length(before)?))
    }
}

/// Whether the tokens are written with a character for each byte.
fn is_byte_level(tokenizer: &Tokenizer) -> bool {
    let json = &tokenizer.files()["tokenizer.json"];
    let Ok(json) = serde_json::from_slice::<Value>(json) else {
        return false; // it has been read before
    };
    let is = |decoder: &Value| decoder["type"] == "ByteLevel";
    let decoder = &json["decoder"];
    let parts = decoder["decoders"].as_array();
    is(decoder) || parts.is_some_and(|parts| parts.iter().any(is))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    /// Tokens "▁a", "▁b", "▁", "c" and bytes, as SentencePiece has them.
    fn sentence_pieces() -> Tokenizer {
        let mut vocab = BTreeMap::from([
            ("<unk>".to_owned(), 0),
            ("<s>".to_owned(), 1),
            ("</s>".to_owned(), 2),
        ]);
        for token in ["▁a", "▁b", "▁", "c", "a", "b"] {
            vocab.insert(token.to_owned(), vocab.len());
        }
        for byte in 0..=255u8 {
            vocab.insert(format!("<0x{byte:02X}>"), vocab.len());
        }
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": vocab, "merges": [["▁", "a"], ["▁", "b"]]},
        });
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, json: &Value| {
            std::fs::write(folder.path().join(name), json.to_string()).unwrap();
        };
        write("tokenizer.json", &tokenizer);
        write("tokenizer_config.json", &json!({"eos_token": "</s>"}));
        Tokenizer::load(folder.path(), None).unwrap()
    }

    #[test]
    fn bytes_are_those_of_the_text_whatever_the_tokenizer() {
        let text = "a bc ü🐻 a";
        for tokenizer in [sentence_pieces(), Tokenizer::bytes().unwrap()] {
            let bytes = TokenBytes::of(&tokenizer);
            let mut ids = tokenizer.encode(text).unwrap();
            assert_eq!(bytes.count(&[], &ids).unwrap(), text.len(), "{ids:?}");
            // The first token has no bytes of the blank that SentencePiece puts before a text.
            assert_eq!(bytes.count(&[], &ids[..1]).unwrap(), 1);
            assert_eq!(bytes.count(&ids[..1], &ids[1..]).unwrap(), text.len() - 1);
            // The end of a document is no text.
            ids.push(tokenizer.eos_id());
            assert!(!bytes.is_text(tokenizer.eos_id()) && bytes.is_text(ids[0]));
            assert_eq!(bytes.count(&[], &ids).unwrap(), text.len());
        }
    }

    #[test]
    fn parts_of_a_character_have_their_own_bytes() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let bytes = TokenBytes::of(&tokenizer);
        let ids = tokenizer.encode("🐻").unwrap();
        assert_eq!(ids.len(), 4);
        for at in 0..4 {
            assert_eq!(bytes.count(&ids[..at], &ids[at..=at]).unwrap(), 1);
        }
    }
}
