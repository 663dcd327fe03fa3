//! Byte-level byte-pair encoding: learning merges. [`crate::byte_level`] applies them.
//!
//! Training counts pairs of neighbouring tokens over distinct pieces and merges the most frequent
//! pair, the one of lowest ids among equals, until the vocabulary is full or no pair comes twice.
//! It is sequential and free of hash order, so equal text gives equal merges anywhere.
//!
//! Text is brought into Unicode's composed form (NFC) first, as `transformers` does for Qwen2.
//! Source: Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 (GPT-2) for bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};

use crate::byte_level::{char_of, composed};
use crate::split::{self, Pattern};

/// Ends a document; also fills up rows.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";
/// Hides a token in masked language modelling.
pub(crate) const MASK: &str = "<mask>";

const LONGEST_WORD: usize = 256;

type Pair = (u32, u32);

/// A byte-level BPE model. Token 0 is [`END_OF_TEXT`], tokens 1 to 256 are bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Bpe {
    /// Bytes of each token; none for token 0.
    tokens: Vec<Vec<u8>>,
    /// Merges by rank.
    merges: Vec<Pair>,
    seen: HashSet<Pair>,
}

impl Bpe {
    /// Learns from texts. `vocab_size` is at least 257; little text gives fewer tokens.
    pub(crate) fn train<'a>(texts: impl Iterator<Item = &'a str>, vocab_size: usize) -> Self {
        let mut bpe = Self::bytes_only();
        let mut ids: HashMap<Vec<u8>, u32> = HashMap::new();
        let texts: Vec<String> = texts.map(composed).collect();
        let mut words = Words::count(texts.iter().map(String::as_str));
        while bpe.tokens.len() < vocab_size {
            let Some(pair) = words.most_frequent_pair() else {
                break;
            };
            let (left, right) = (&bpe.tokens[pair.0 as usize], &bpe.tokens[pair.1 as usize]);
            let bytes = [left.as_slice(), right].concat();
            // Two pairs may spell the same token.
            let id = *ids.entry(bytes.clone()).or_insert_with(|| {
                bpe.tokens.push(bytes);
                bpe.tokens.len() as u32 - 1
            });
            words.merge(pair, id);
            bpe.add_merge(pair);
        }
        bpe
    }

    fn bytes_only() -> Self {
        let tokens = std::iter::once(vec![]).chain((0..=255).map(|byte| vec![byte]));
        Self {
            tokens: tokens.collect(),
            merges: Vec::new(),
            seen: HashSet::new(),
        }
    }

    fn add_merge(&mut self, pair: Pair) {
        if self.seen.insert(pair) {
            self.merges.push(pair);
        }
    }

    /// The model as Hugging Face's `tokenizer.json`, with [`MASK`] after the last token if `has_mask`.
    pub(crate) fn to_json(&self, has_mask: bool) -> Value {
        let spelled: Vec<String> = self.tokens.iter().map(|bytes| spell(bytes)).collect();
        let mask = has_mask.then(|| MASK.to_owned());
        let vocab: serde_json::Map<String, Value> = std::iter::once(END_OF_TEXT.to_owned())
            .chain(spelled[1..].iter().cloned())
            .chain(mask)
            .zip((0..).map(Value::from))
            .collect();
        let mask_id = has_mask.then_some(self.tokens.len());
        let merge = |pair: &Pair| [&spelled[pair.0 as usize], &spelled[pair.1 as usize]];
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(mask_id),
            "normalizer": { "type": "NFC" },
            "pre_tokenizer": pre_tokenizer(),
            "post_processor": null,
            "decoder": byte_level(),
            "model": bpe_model(&vocab, &self.merges.iter().map(merge).collect::<Vec<_>>()),
        })
    }
}

/// The `model` of a byte-level BPE in a `tokenizer.json`: ids by token, and pairs of tokens by rank.
pub(crate) fn bpe_model(vocab: &impl Serialize, merges: &impl Serialize) -> Value {
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": vocab,
        "merges": merges,
    })
}

fn added_tokens(mask_id: Option<usize>) -> Vec<Value> {
    // A hidden token may have had a blank before it, which `lstrip` takes in where a text has the mask.
    let token = |id: usize, content: &str, lstrip: bool| {
        json!({
            "id": id,
            "content": content,
            "single_word": false,
            "lstrip": lstrip,
            "rstrip": false,
            "normalized": false,
            "special": true,
        })
    };
    let mask = mask_id.map(|id| token(id, MASK, true));
    [token(0, END_OF_TEXT, false)]
        .into_iter()
        .chain(mask)
        .collect()
}

fn pre_tokenizer() -> Value {
    json!({
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": { "Regex": split::QWEN2 },
                "behavior": "Isolated",
                "invert": false,
            },
            byte_level(),
        ],
    })
}

fn byte_level() -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": false,
    })
}

fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char_of(byte)).collect()
}

/// The distinct pieces of a text as tokens so far, with counts of neighbouring pairs.
struct Words {
    /// Tokens of a piece, and how often it comes.
    words: Vec<(Vec<u32>, u64)>,
    pair_counts: HashMap<Pair, u64>,
    /// Words in which a pair has been seen; it may be gone from some.
    words_of: HashMap<Pair, Vec<usize>>,
    /// Counts as they were; entries that no longer hold are passed over.
    queue: BinaryHeap<(u64, Reverse<Pair>)>,
}

impl Words {
    fn count<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut pieces: BTreeMap<&str, u64> = BTreeMap::new();
        for piece in texts.flat_map(|text| Pattern::Qwen2.pieces(text)) {
            // A longer one is no word; it would cost much and teach nothing.
            if piece.len() <= LONGEST_WORD {
                *pieces.entry(piece).or_default() += 1;
            }
        }
        let tokens = |piece: &str| piece.bytes().map(|byte| u32::from(byte) + 1).collect();
        let mut words = Self {
            words: pieces
                .iter()
                .map(|(piece, &n)| (tokens(piece), n))
                .collect(),
            pair_counts: HashMap::new(),
            words_of: HashMap::new(),
            queue: BinaryHeap::new(),
        };
        for index in 0..words.words.len() {
            words.add_pairs_of(index, &mut BTreeSet::new());
        }
        words.queue = words
            .pair_counts
            .iter()
            .map(|(&p, &n)| (n, Reverse(p)))
            .collect();
        words
    }

    fn most_frequent_pair(&mut self) -> Option<Pair> {
        while let Some((count, Reverse(pair))) = self.queue.pop() {
            if count < 2 {
                return None;
            }
            if self.pair_counts[&pair] == count {
                return Some(pair);
            }
        }
        None
    }

    fn merge(&mut self, pair: Pair, id: u32) {
        let mut touched = BTreeSet::new();
        let mut indices = self.words_of.remove(&pair).unwrap_or_default();
        indices.dedup(); // a word comes once for each of its pairs, all in a row
        for index in indices {
            let (word, count) = &mut self.words[index];
            for pair in word.windows(2).map(|w| (w[0], w[1])) {
                *self.pair_counts.entry(pair).or_default() -= *count;
                touched.insert(pair);
            }
            merge_in(word, pair, id);
            self.add_pairs_of(index, &mut touched);
        }
        let counts = touched
            .iter()
            .map(|&pair| (self.pair_counts[&pair], Reverse(pair)));
        self.queue.extend(counts);
    }

    fn add_pairs_of(&mut self, index: usize, touched: &mut BTreeSet<Pair>) {
        let (word, count) = &self.words[index];
        for pair in word.windows(2).map(|w| (w[0], w[1])) {
            *self.pair_counts.entry(pair).or_default() += count;
            let words = self.words_of.entry(pair).or_default();
            if words.last() != Some(&index) {
                words.push(index);
            }
            touched.insert(pair);
        }
    }
}

/// Replaces each `pair` in `word`, from the left.
fn merge_in(word: &mut Vec<u32>, pair: Pair, id: u32) {
    let mut kept = 0;
    let mut i = 0;
    while i < word.len() {
        let is_pair = i + 1 < word.len() && (word[i], word[i + 1]) == pair;
        word[kept] = if is_pair { id } else { word[i] };
        kept += 1;
        i += if is_pair { 2 } else { 1 };
    }
    word.truncate(kept);
}
