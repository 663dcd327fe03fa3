//! Encoding with byte-level byte-pair encoding, as GPT-2, Llama 3, Qwen2 and the tokenizers trained here have it.
//!
//! It gives the ids that `tokenizers` gives, into a buffer that is kept, in a fraction of the time: pieces are split without
//! backtracking, a piece that is a token is looked up, and any other merges its pair of lowest rank, leftmost first, until
//! none is left. [`ByteLevel::from_json`] takes a `tokenizer.json` only if all that it says is done here.
//! Source: Radford et al. 2019 (GPT-2); Sennrich et al. 2016, arXiv:1508.07909.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde_json::Value;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc, is_nfc_quick};

use crate::split::Pattern;

/// Bytes of a piece beyond which merging here, of time quadratic in a piece, would be slow.
const LONGEST_PIECE: usize = 256;
/// The rank of a pair that is not merged.
const NEVER: u32 = u32::MAX;

/// An encoder.
pub(crate) struct ByteLevel {
    pattern: Pattern,
    /// Text is composed first (Unicode NFC).
    composes: bool,
    bytes: [u32; 256],
    /// Rank and result of each merge, by [`pair`].
    merges: HashMap<u64, (u32, u32), BuildHasherDefault<FastHasher>>,
    /// Pieces that are one token.
    whole: HashMap<Box<[u8]>, u32, BuildHasherDefault<FastHasher>>,
    /// What is taken out of a text before it is split, and the beginnings of those.
    added: Vec<String>,
    beginnings: Vec<String>,
}

impl ByteLevel {
    /// Of a `tokenizer.json`; `None` if it asks for anything else.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let composes = match json["normalizer"]["type"].as_str() {
            None if json["normalizer"].is_null() => false,
            Some("NFC") => true,
            _ => return None,
        };
        let model = &json["model"];
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Number(number) => number.as_f64() == Some(0.0),
            _ => false,
        };
        let others = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"];
        let is_plain =
            others.iter().all(|key| is_off(&model[key])) && is_off(&model["byte_fallback"]);
        // Files of earlier versions do not name the model's type.
        if !is_plain || !matches!(model["type"].as_str(), Some("BPE") | None) {
            return None;
        }
        let added = json["added_tokens"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let added = added
            .iter()
            .map(|token| token["content"].as_str().map(str::to_owned));
        let added: Vec<String> = added.collect::<Option<_>>()?;
        if composes && !added.iter().all(|token| is_nfc(token)) {
            return None;
        }
        let vocab = model["vocab"].as_object()?;
        let mut ids: HashMap<Box<[u8]>, u32, _> = HashMap::default();
        for (token, id) in vocab {
            // A token that spells no bytes is none of a text's.
            if let Some(bytes) = unspell(token) {
                ids.insert(bytes.into(), u32::try_from(id.as_u64()?).ok()?);
            }
        }
        let mut bytes = [0; 256];
        for (byte, id) in (0..=255).zip(&mut bytes) {
            *id = *ids.get(&[byte][..])?;
        }
        let mut encoder = Self {
            pattern: Pattern::of(&json["pre_tokenizer"])?,
            composes,
            bytes,
            merges: HashMap::default(),
            whole: HashMap::default(),
            beginnings: beginnings(&added),
            added,
        };
        for (rank, merge) in (0..).zip(model["merges"].as_array()?) {
            let (left, right) = match merge {
                Value::String(merge) => merge.split_once(' ')?,
                merge => (merge[0].as_str()?, merge[1].as_str()?),
            };
            let (left, right) = (unspell(left)?, unspell(right)?);
            let id = *ids.get(&[&left[..], &right].concat()[..])?;
            let pair = pair(*ids.get(&left[..])?, *ids.get(&right[..])?);
            if encoder.merges.insert(pair, (rank, id)).is_some() {
                return None; // which of the two counts is not said
            }
        }
        let takes_whole = model["ignore_merges"].as_bool().unwrap_or(false);
        let mut made = Vec::new();
        ids.retain(|bytes, id| {
            made.clear();
            takes_whole
                || bytes.len() <= LONGEST_PIECE && {
                    encoder.merge(bytes, &mut made);
                    made == [*id]
                }
        });
        encoder.whole = ids;
        Some(encoder)
    }

    /// Appends the tokens of `text`.
    ///
    /// False, and nothing is appended, if there may be an added token in it, if it may have to be composed first, or if a piece
    /// is longer than any word.
    #[must_use]
    pub(crate) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> bool {
        let may_be_added = self.beginnings.iter().any(|it| text.contains(it));
        if may_be_added && self.added.iter().any(|token| text.contains(token)) {
            return false;
        }
        if self.composes && !text.is_ascii() && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            return false;
        }
        let before = ids.len();
        for piece in self.pattern.pieces(text) {
            if let Some(&id) = self.whole.get(piece.as_bytes()) {
                ids.push(id);
            } else if piece.len() <= LONGEST_PIECE {
                self.merge(piece.as_bytes(), ids);
            } else {
                ids.truncate(before);
                return false;
            }
        }
        true
    }

    /// Appends the tokens of a piece of at most [`LONGEST_PIECE`] bytes.
    fn merge(&self, piece: &[u8], ids: &mut Vec<u32>) {
        // Of each token that is left the rank and result of merging it with the next.
        let mut ranks = [(NEVER, 0); LONGEST_PIECE];
        let start = ids.len();
        ids.extend(piece.iter().map(|&byte| self.bytes[usize::from(byte)]));
        let rank = |ids: &[u32], at: usize| match ids.get(start + at + 1) {
            Some(&right) => {
                let merge = self.merges.get(&pair(ids[start + at], right));
                merge.copied().unwrap_or((NEVER, 0))
            }
            None => (NEVER, 0),
        };
        let mut len = piece.len();
        for (at, it) in ranks[..len].iter_mut().enumerate() {
            *it = rank(ids, at);
        }
        // Pieces are words, so looking through all pairs for each merge is quick.
        while let Some((at, &(lowest, id))) =
            (ranks[..len].iter().enumerate()).min_by_key(|(_, (rank, _))| *rank)
            && lowest != NEVER
        {
            ids[start + at] = id;
            ids.remove(start + at + 1);
            ranks.copy_within(at + 2..len, at + 1);
            len -= 1;
            ranks[at] = rank(ids, at);
            if at > 0 {
                ranks[at - 1] = rank(ids, at - 1);
            }
        }
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The first two characters of each token, each once: few, where there are hundreds of tokens.
fn beginnings(tokens: &[String]) -> Vec<String> {
    let two = |token: &String| token.chars().take(2).collect();
    let mut all: Vec<String> = tokens.iter().map(two).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Text in the composed form that [`ByteLevel`] wants.
pub(crate) fn composed(text: &str) -> String {
    text.nfc().collect()
}

/// The visible character that stands for a byte in a vocabulary: printable Latin-1 for itself,
/// the 68 others in order from U+0100.
pub(crate) fn char_of(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_visible(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    char::from_u32(0x100 + hidden_before).expect("under U+0144")
}

/// The bytes of a token of a vocabulary; `None` if a character stands for none.
pub(crate) fn unspell(token: &str) -> Option<Vec<u8>> {
    static BYTES: std::sync::LazyLock<HashMap<char, u8>> =
        std::sync::LazyLock::new(|| (0..=255).map(|byte| (char_of(byte), byte)).collect());
    token.chars().map(|c| BYTES.get(&c).copied()).collect()
}

/// For keys that nobody chooses to collide: a multiplication for each eight bytes.
#[derive(Default)]
struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(last));
        }
    }

    fn write_u64(&mut self, value: u64) {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(self.0 ^ value) * u128::from(ODD);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpe::Bpe;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    const TEXT: &str = "It's 1234 o'clock: the kite, the kites and THE KITE'S 2024 strings; caf\u{e9} na\u{ef}ve.\n\n  if (x == 10) {\n\treturn x;\n}\n";

    fn json_of(pre_tokenizer: Value, normalizer: Value, ignore_merges: bool) -> Value {
        let mut json = Bpe::train([TEXT, TEXT].into_iter(), 400).to_json(false);
        json["pre_tokenizer"] = pre_tokenizer;
        json["normalizer"] = normalizer;
        json["model"]["ignore_merges"] = ignore_merges.into();
        // A token that its bytes do not merge to.
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        merges.remove(5);
        merges.truncate(merges.len() - 5);
        json
    }

    fn split(pattern: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]})
    }

    fn gpt2() -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})
    }

    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    static KINDS: LazyLock<Vec<(ByteLevel, tokenizers::Tokenizer)>> = LazyLock::new(|| {
        let jsons = [
            json_of(split(crate::split::QWEN2), json!({"type": "NFC"}), false),
            json_of(gpt2(), Value::Null, false),
            json_of(split(LLAMA3), Value::Null, true),
        ];
        let both = |json: &Value| {
            let theirs = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
            (ByteLevel::from_json(json).unwrap(), theirs)
        };
        jsons.iter().map(both).collect()
    });

    proptest! {
        #[test]
        fn ids_are_those_of_hugging_face(
            text in r"(( ?the| ?kites?| THE|'S|caf\u{e9}|e\u{301}|[0-9]{1,5}|return|[a-z]{1,4}|  |<\|)?[ \n.,!\x22'(){}]{0,3}|\PC{0,3}){0,20}"
        ) {
            for (ours, theirs) in KINDS.iter() {
                let expected = theirs.encode_fast(text.as_str(), false).unwrap();
                let mut ids = Vec::new();
                if ours.encode_into(&text, &mut ids) {
                    prop_assert_eq!(&ids[..], expected.get_ids());
                }
            }
        }
    }

    #[test]
    fn most_text_is_encoded_here_and_the_rest_is_left() {
        let word = "x".repeat(LONGEST_PIECE + 1);
        for (ours, theirs) in KINDS.iter() {
            let mut ids = vec![7];
            assert!(ours.encode_into(TEXT, &mut ids));
            let expected = theirs.encode_fast(TEXT, false).unwrap();
            assert_eq!(&ids[1..], expected.get_ids());
            for text in ["a<|endoftext|>", &word] {
                assert!(!ours.encode_into(text, &mut ids), "{text}");
            }
            assert_eq!(ids.len(), 1 + expected.get_ids().len());
        }
    }

    #[test]
    fn a_tokenizer_that_does_anything_else_is_not_taken() {
        let plain = json_of(split(crate::split::QWEN2), Value::Null, false);
        assert!(ByteLevel::from_json(&plain).is_some());
        let changes: [(&str, Value); 9] = [
            ("/normalizer", json!({"type": "NFKC"})),
            ("/pre_tokenizer", Value::Null),
            ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")),
            (
                "/pre_tokenizer/pretokenizers/0/pattern/Regex",
                json!(r"\s+"),
            ),
            (
                "/pre_tokenizer/pretokenizers/1/add_prefix_space",
                json!(true),
            ),
            ("/model/type", json!("Unigram")),
            ("/model/dropout", json!(0.1)),
            ("/model/byte_fallback", json!(true)),
            ("/model/end_of_word_suffix", json!("</w>")),
        ];
        for (key, value) in changes {
            let mut json = plain.clone();
            *json.pointer_mut(key).unwrap() = value;
            assert!(ByteLevel::from_json(&json).is_none(), "{key}");
        }
    }
}
