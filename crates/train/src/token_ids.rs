//! The tokens that begin, end and fill up texts, and how continuations are drawn, as a model's files say it.
//!
//! `config.json` and `generation_config.json` of a base model are carried on into what is trained from it: programs that
//! generate stop at the ends named there, of which a chat model has several. The end of a document that the training data
//! has is one more.

use serde_json::{Map, Value, json};
use tt_data::Tokenizer;

/// Keys that both files have.
const IDS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The tokens that begin, end and fill up texts, and how continuations are drawn, as `config.json` and
/// `generation_config.json` say it. Those of a base model are carried on into what is trained from it; the end of a
/// document that the training data has is one more end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenIds {
    /// Of `config.json` the ids alone.
    config: Map<String, Value>,
    generation: Map<String, Value>,
}

impl TokenIds {
    /// As a model's files say; null for a file that is not there.
    pub fn new(config: &Value, generation_config: &Value) -> Self {
        let ids = IDS.iter().filter(|id| !config[**id].is_null());
        let ids = ids.map(|id| ((*id).to_owned(), config[*id].clone()));
        Self {
            config: ids.collect(),
            generation: generation_config.as_object().cloned().unwrap_or_default(),
        }
    }

    /// The settings without the ids, for a model that is given another tokenizer.
    #[must_use]
    pub fn without_ids(mut self) -> Self {
        self.config.clear();
        for key in [
            "bos",
            "eos",
            "pad",
            "decoder_start",
            "forced_bos",
            "forced_eos",
        ] {
            self.generation.remove(&format!("{key}_token_id"));
        }
        self
    }

    /// With what `tokenizer` begins and ends documents and fills up rows by; ids that are there stay.
    #[must_use]
    pub fn with(&self, tokenizer: &Tokenizer) -> Self {
        let mut all = self.clone();
        for id in IDS {
            if let Some(value) = all.config.get(id) {
                all.generation.entry(id).or_insert(value.clone());
            }
        }
        let mut ends = ids(all.generation.get("eos_token_id"));
        if !ends.contains(&tokenizer.eos_id()) {
            ends.push(tokenizer.eos_id());
        }
        let ends = match ends[..] {
            [end] => json!(end),
            _ => json!(ends),
        };
        all.generation.insert("eos_token_id".to_owned(), ends);
        // Without one, transformers takes the number that its published model has. Documents begin where others end.
        let begins = tokenizer.document_start().first().copied();
        let begins = begins.unwrap_or(tokenizer.eos_id());
        for map in [&mut all.config, &mut all.generation] {
            map.entry("bos_token_id").or_insert(json!(begins));
            map.entry("eos_token_id")
                .or_insert(json!(tokenizer.eos_id()));
            map.entry("pad_token_id")
                .or_insert(json!(tokenizer.pad_id()));
        }
        all
    }

    /// With one more end.
    #[must_use]
    pub fn and_end(mut self, end: u32) -> Self {
        let mut ends = ids(self.generation.get("eos_token_id"));
        if !ends.contains(&end) {
            ends.push(end);
            self.generation
                .insert("eos_token_id".to_owned(), json!(ends));
        }
        self
    }

    /// Each token that ends a text.
    pub fn ends(&self) -> Vec<u32> {
        let of = |map: &Map<String, Value>| ids(map.get("eos_token_id"));
        let ends = of(&self.generation);
        if ends.is_empty() {
            of(&self.config)
        } else {
            ends
        }
    }

    /// For `config.json`.
    pub(crate) fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// For `generation_config.json`.
    pub(crate) fn generation_config(&self) -> Value {
        Value::Object(self.generation.clone())
    }
}

/// One id or several.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(values)) => values.iter().filter_map(one).collect(),
        value => value.and_then(one).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_keeps_its_ends_and_settings_and_gets_the_documents_end() {
        let config = json!({"bos_token_id": 5, "eos_token_id": 7, "hidden_size": 8});
        let generation = json!({"eos_token_id": [7, 9], "temperature": 0.6, "do_sample": true});
        let tokenizer = Tokenizer::bytes().unwrap(); // ends with 0
        let ids = TokenIds::new(&config, &generation).with(&tokenizer);
        assert_eq!(ids.ends(), [7, 9, 0]);
        assert_eq!(ids.clone().and_end(9).ends(), [7, 9, 0]);
        assert_eq!(ids.clone().and_end(11).ends(), [7, 9, 0, 11]);
        assert_eq!(
            ids.generation_config(),
            json!({
                "bos_token_id": 5, "eos_token_id": [7, 9, 0], "pad_token_id": 0, "temperature": 0.6,
                "do_sample": true,
            })
        );
        let expected = json!({"bos_token_id": 5, "eos_token_id": 7, "pad_token_id": 0});
        assert_eq!(Value::from(ids.config().clone()), expected);
        // Carried on once more they stay what they are.
        assert_eq!(ids.with(&tokenizer), ids);
    }

    #[test]
    fn without_a_base_the_tokenizer_says_all() {
        let ids = TokenIds::default().with(&Tokenizer::bytes().unwrap());
        assert_eq!(
            ids.generation_config(),
            json!({"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0})
        );
        assert_eq!(ids.ends(), [0]);
    }

    #[test]
    fn with_another_tokenizer_only_the_settings_are_carried_on() {
        let config = json!({"eos_token_id": 700});
        let generation = json!({"eos_token_id": [700, 900], "top_p": 0.9});
        let ids = TokenIds::new(&config, &generation).without_ids();
        assert_eq!(ids.generation_config(), json!({"top_p": 0.9}));
        assert!(ids.ends().is_empty());
    }
}
