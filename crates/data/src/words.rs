//! Which tokens are parts of one word, and which are special: what a token may be hidden or replaced by.
//!
//! A word is what a tokenizer's own marks make one: of WordPiece a token and those with `##` after it, of byte-level BPE and of
//! Unigram a run of tokens with no blank, punctuation or line end between their letters and digits. So of "don't stop," the
//! words are `don`, `'`, `t`, `stop` and `,`, or `don`, `'t`, `stop` and `,`, as the tokenizer splits it.

use std::collections::HashSet;

use serde_json::Value;

use crate::byte_level::unspell;
use crate::tokenizer::Tokenizer;

/// What each token of a tokenizer is.
#[derive(Debug, Clone)]
pub struct Words {
    kinds: Vec<Kind>,
    ordinary: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    is_special: bool,
    /// It begins, or ends, in the middle of what may be a word.
    is_open: (bool, bool),
}

impl Words {
    /// Of a tokenizer's whole vocabulary.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let json: Value = tokenizer.json();
        let prefix = match json["model"]["type"].as_str() {
            Some("WordPiece") => json["model"]["continuing_subword_prefix"].as_str(),
            _ => None,
        };
        let is_bytes = [&json["pre_tokenizer"], &json["decoder"]]
            .into_iter()
            .any(is_byte_level);
        let special = special(tokenizer);
        let size = tokenizer.vocab_size();
        let mut kinds = vec![Kind::default(); size];
        let mut ordinary = Vec::with_capacity(size);
        for (id, kind) in (0..).zip(&mut kinds) {
            kind.is_special = special.contains(&id);
            let Some(token) = tokenizer.token(id).filter(|_| !kind.is_special) else {
                continue;
            };
            ordinary.push(id);
            kind.is_open = match prefix {
                Some(prefix) => (token.starts_with(prefix), true),
                None if is_bytes => match unspell(&token) {
                    Some(bytes) => ends(&String::from_utf8_lossy(&bytes)),
                    None => ends(&token),
                },
                None => ends(&token),
            };
        }
        Self { kinds, ordinary }
    }

    /// Whether it begins, ends, separates, hides or fills up texts, and is none of any.
    pub fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize).is_some_and(|it| it.is_special)
    }

    /// Whether `token` goes on with the word that `before`, the token before it, is of.
    pub fn goes_on(&self, before: u32, token: u32) -> bool {
        let open = |id: u32| self.kinds.get(id as usize).map(|it| it.is_open);
        matches!(
            (open(before), open(token)),
            (Some((_, true)), Some((true, _)))
        )
    }

    /// The tokens that are not special, in order.
    pub fn ordinary(&self) -> &[u32] {
        &self.ordinary
    }
}

/// Whether the first and the last character are of a word; a part of a character is.
fn ends(text: &str) -> (bool, bool) {
    let is_of_word = |c: Option<char>| {
        c.is_some_and(|c| c.is_alphanumeric() || c == char::REPLACEMENT_CHARACTER)
    };
    (
        is_of_word(text.chars().next()),
        is_of_word(text.chars().next_back()),
    )
}

fn is_byte_level(part: &Value) -> bool {
    let parts = ["pretokenizers", "decoders"].into_iter();
    let mut parts = parts.filter_map(|key| part[key].as_array()).flatten();
    part["type"] == "ByteLevel" || parts.any(is_byte_level)
}

fn special(tokenizer: &Tokenizer) -> HashSet<u32> {
    let added = tokenizer.as_hf().get_added_tokens_decoder();
    let added = added.iter().filter(|(_, token)| token.special);
    let named = [tokenizer.eos_id(), tokenizer.pad_id()];
    let mut special: HashSet<u32> = added.map(|(id, _)| *id).collect();
    special.extend(named.iter().chain(tokenizer.document_start()));
    special.extend(tokenizer.mask_id());
    special
}
