//! What begins a text and what ends it is there once, whether the text brings it or not.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tt_collators::{
    BatchShape, Collator, Loader, PreferenceCollator, SeqToSeqCollator, TokenizeCollator,
    TokenizeConfig,
};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source, Tokenizer};

use crate::preference;

/// The one of the goldens, which ends texts with `<|im_end|>`, with `<begin>` before each.
fn tokenizer() -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let plain = preference::tokenizer();
    let id = plain.vocab_size();
    for (name, bytes) in plain.files() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let mut json: Value = serde_json::from_slice(&plain.files()["tokenizer.json"]).unwrap();
    let start = json!({"id": id, "content": "<begin>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    json["added_tokens"].as_array_mut().unwrap().push(start);
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<begin>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<begin>": {"id": "<begin>", "ids": [id], "tokens": ["<begin>"]}},
    });
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    Arc::new(Tokenizer::load(&path, None).unwrap())
}

struct One(Row);

impl Source for One {
    fn num_rows(&self) -> Option<u64> {
        Some(1)
    }

    fn read(&self, _: u64, row: &mut Row) -> Result<(), DataError> {
        row.clone_from(&self.0);
        Ok(())
    }
}

/// The text of each row that is made of `record`.
fn rows(collator: Arc<dyn Collator>, record: &Value) -> Vec<String> {
    let tokenizer = tokenizer();
    let (rows, seq_len) = (1, 64);
    let shape = BatchShape {
        rows,
        seq_len,
        pad_id: 0,
        vocab_size: tokenizer.vocab_size(),
    };
    let source = Arc::new(One(Row {
        fields: serde_json::from_value(record.clone()).unwrap(),
        at: Location::Line {
            file: Path::new("a.jsonl").into(),
            line: 1,
        },
    }));
    let order = Order::new(0, Shard::default(), Some(1)).unwrap();
    let start = Cursor::default();
    let loader = Loader::new(source, order, collator, shape, start, Some(1), 0);
    let batch = loader.unwrap().next_batch().unwrap().unwrap();
    let of_row = |row: usize| {
        let here = row * seq_len..(row + 1) * seq_len;
        let ids = here.filter(|&i| batch.segment_ids[i] != 0);
        let ids: Vec<u32> = ids.map(|i| batch.input_ids[i]).collect();
        tokenizer.decode_all(&ids).unwrap()
    };
    (0..batch.rows).map(of_row).collect()
}

#[test]
fn of_documents() {
    for packing in [false, true] {
        let config = || TokenizeConfig {
            packing,
            ..TokenizeConfig::default()
        };
        for text in [
            "x",
            "<begin>x",
            "x<|im_end|>",
            "<begin>x<|im_end|>",
            "<begin>x<|im_end|>\n",
        ] {
            let collator = Arc::new(TokenizeCollator::new(config(), tokenizer()));
            let found = rows(collator, &json!({"text": text}));
            assert_eq!(found, ["<begin>x<|im_end|>"], "{text:?}");
        }
    }
    // Nothing but the end ends a text.
    let collator = Arc::new(TokenizeCollator::new(
        TokenizeConfig::default(),
        tokenizer(),
    ));
    assert_eq!(
        rows(collator, &json!({"text": "x\n"})),
        ["<begin>x\n<|im_end|>"]
    );
}

#[test]
fn of_an_input_and_its_output() {
    for (input, output) in [
        ("x", "y"),
        ("<begin>x", "y<|im_end|>"),
        ("<begin>x", "y<|im_end|>\n"),
    ] {
        let collator = Arc::new(SeqToSeqCollator::new(<_>::default(), tokenizer()));
        let found = rows(collator, &json!({"input_ids": input, "output_ids": output}));
        assert_eq!(found, ["<begin>xy<|im_end|>"], "{input:?} {output:?}");
    }
}

#[test]
fn of_pairs() {
    for (prompt, chosen) in [
        ("x", " A"),
        ("<begin>x", " A<|im_end|>"),
        ("<begin>x", " A<|im_end|>\n"),
    ] {
        let collator = PreferenceCollator::new(<_>::default(), tokenizer()).unwrap();
        let record = json!({"prompt": prompt, "chosen": chosen, "rejected": " B"});
        let found = rows(Arc::new(collator), &record);
        assert_eq!(
            found,
            ["<begin>x A<|im_end|>", "<begin>x B<|im_end|>"],
            "{prompt:?} {chosen:?}"
        );
    }
    let collator = PreferenceCollator::new(<_>::default(), tokenizer()).unwrap();
    let record = json!({"chosen": "<begin>x A", "rejected": "<begin>x B"});
    let found = rows(Arc::new(collator), &record);
    assert_eq!(found, ["<begin>x A<|im_end|>", "<begin>x B<|im_end|>"]);
}
