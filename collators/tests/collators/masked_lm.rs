//! Hidden tokens: the same for any number of workers, from any cursor, with a token cache and without, other ones in each
//! epoch, and in validation the same for every seed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tt_collators::{Batch, IGNORE, Pipeline, PipelineOptions, Prediction};
use tt_data::{DataConfig, TokenCacheConfig, TokenizerOrigin};

/// Documents of a few tokens up to several parts.
fn write_texts(path: &Path) {
    let mut lines = String::new();
    for i in 0..60 {
        let text = match i % 20 {
            9 => "A kite flies over the harbor, and a goat sees it.\n".repeat(2000),
            n => format!("Row {i}: {} kites.", "many ".repeat(2 * n)),
        };
        lines += &format!("{}\n", json!({ "text": text }));
    }
    fs::write(path, lines).unwrap();
}

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_texts(&folder.path().join("texts.jsonl"));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, kwargs: &Value) -> DataConfig {
        let mut config = DataConfig {
            path: Some(self.path("texts.jsonl").display().to_string()),
            sequence_length: 64,
            num_val_blocks: 2,
            ..DataConfig::default()
        };
        config.dataset.url = "jsonl".to_owned();
        config.tokenizer.vocab_size = 300;
        config.collator.r#type = "masked_lm.MaskedLMCollator".to_owned();
        config.collator.kwargs = kwargs.as_object().unwrap().clone();
        config
    }
}

fn options(seed: u64) -> PipelineOptions {
    PipelineOptions {
        seed,
        cache: None,
        num_epochs: Some(2),
        ..PipelineOptions::default()
    }
}

fn open(config: &DataConfig, seed: u64) -> Pipeline {
    let mut data = Pipeline::open(config, &options(seed)).unwrap();
    data.fill_token_cache(&|_| true).unwrap();
    data
}

fn batches(data: &Pipeline) -> Vec<Batch> {
    let mut loader = data.train(None).unwrap();
    std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
}

/// Spans of words, so that what is hidden depends on more than the place.
fn spans() -> Value {
    json!({ "whole_word_mask": true, "max_ngrams": 3 })
}

#[test]
fn workers_cursors_and_a_token_cache_hide_the_same_tokens() {
    let place = Place::new();
    let config = place.config(&spans());
    let data = open(&config, 1);
    let all = batches(&data);
    assert!(all.len() > 200, "{}", all.len());
    for num_workers in [0, 4] {
        let config = DataConfig {
            num_workers,
            ..config.clone()
        };
        assert!(batches(&open(&config, 1)) == all, "{num_workers} workers");
    }
    for at in [1, all.len() / 3, all.len() - 2] {
        let mut rest = data.train(Some(all[at].cursor)).unwrap();
        for expected in &all[at + 1..] {
            assert!(
                rest.next_batch().unwrap().as_ref() == Some(expected),
                "from {at} on"
            );
        }
    }
    let config = DataConfig {
        token_cache: TokenCacheConfig::Folder(place.path("tokens").display().to_string()),
        ..config
    };
    assert!(batches(&open(&config, 1)) == all, "from tokens on disk");
}

/// The labels of each text, by its tokens, each time that it comes.
fn hidden(batches: &[Batch]) -> HashMap<Vec<i64>, Vec<Vec<i64>>> {
    let mut hidden: HashMap<_, Vec<_>> = HashMap::new();
    for batch in batches {
        let rows = batch.input_ids.chunks(64).zip(batch.labels.chunks(64));
        for (ids, labels) in rows {
            let was = |(id, label): (&u32, &i64)| match *label {
                IGNORE => i64::from(*id),
                label => label,
            };
            let text: Vec<i64> = ids.iter().zip(labels).map(was).collect();
            hidden.entry(text).or_default().push(labels.to_vec());
        }
    }
    hidden
}

#[test]
fn each_epoch_and_each_seed_hides_other_tokens_and_validation_none() {
    let place = Place::new();
    let config = place.config(&json!({ "packing": false }));
    let [one, two] = [1, 2].map(|seed| open(&config, seed));
    let [first, second] = [&one, &two].map(|data| hidden(&batches(data)));
    let (mut twice, mut same) = (0, 0);
    for (text, labels) in &first {
        // In one epoch each, and under another seed.
        if let ([a, b], Some([c, ..])) = (&labels[..], second.get(text).map(Vec::as_slice)) {
            twice += 1;
            same += usize::from(a == b || a == c);
        }
    }
    assert!(twice > 40, "{twice}");
    // Of a short text nothing may be hidden twice.
    assert!(same < twice / 4, "{same} of {twice}");
    assert!(one.validation() == two.validation());
    let in_place = |batch: &Batch| batch.prediction == Prediction::SameToken;
    assert!(one.validation().iter().all(in_place));
}

#[test]
fn a_label_is_the_token_that_was_there_and_padding_and_ends_have_none() {
    let place = Place::new();
    let data = open(
        &place.config(&json!({ "packing": false, "mlm_probability": 0.5 })),
        3,
    );
    let plain = DataConfig {
        collator: serde_json::from_value(json!({ "kwargs": { "packing": false } })).unwrap(),
        ..place.config(&json!({}))
    };
    // The same tokens but for the mask.
    let plain = Pipeline::open(
        &plain,
        &PipelineOptions {
            tokenizer: Some(TokenizerOrigin::Within {
                file: PathBuf::from("tokenizer.json"),
                files: data.tokenizer_files(),
            }),
            ..options(3)
        },
    );
    let (all, plain) = (batches(&data), batches(&plain.unwrap()));
    let (eos, mask) = (
        data.tokenizer().eos_id(),
        data.tokenizer().mask_id().unwrap(),
    );
    let last = data.tokenizer().vocab_size() - 1;
    assert_eq!(mask as usize, last, "the last of the vocabulary");
    let (mut targets, mut tokens) = (0, 0);
    for (batch, plain) in all.iter().zip(&plain) {
        assert_eq!(batch.segment_ids, plain.segment_ids);
        for i in 0..batch.labels.len() {
            let (id, label, token) = (batch.input_ids[i], batch.labels[i], plain.input_ids[i]);
            let is_end = i % 64 == 63 || batch.segment_ids[i + 1] == 0;
            if batch.segment_ids[i] == 0 || is_end {
                assert_eq!(label, IGNORE);
                assert!(id == eos);
                continue;
            }
            tokens += 1;
            match label {
                IGNORE => assert_eq!(id, token),
                label => assert_eq!(label, i64::from(token)),
            }
            targets += usize::from(label != IGNORE);
        }
        let labelled = batch.labels.iter().filter(|label| **label != IGNORE);
        assert_eq!(batch.num_targets, labelled.count());
    }
    let share = targets as f64 / tokens as f64;
    assert!((0.45..0.55).contains(&share), "{share}");
}

/// Of BERT, from a `vocab.txt`: what begins and ends a text is never hidden, nor put in the place of another token, and the end
/// stays where a text is cut.
#[test]
fn documents_of_bert_begin_and_end_as_its_tokenizer_says() {
    let place = Place::new();
    let mut config = place.config(&json!({
        "packing": false, "mlm_probability": 1.0, "mask_replace_prob": 0.5, "random_replace_prob": 0.5,
    }));
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/vocab_txt/uncased"
    );
    config.tokenizer.path = Some(golden.to_owned());
    let data = open(&config, 0);
    let [pad, unk, cls, sep] = [0, 1, 2, 3];
    let mut cut = 0;
    for batch in batches(&data) {
        let rows = batch.input_ids.chunks(64).zip(batch.labels.chunks(64));
        for ((ids, labels), segments) in rows.zip(batch.segment_ids.chunks(64)) {
            let len = segments.iter().filter(|it| **it != 0).count();
            if len == 0 {
                continue;
            }
            assert_eq!((ids[0], labels[0]), (cls, IGNORE));
            assert_eq!((ids[len - 1], labels[len - 1]), (sep, IGNORE));
            assert!(ids[len..].iter().all(|id| *id == pad));
            let inner = ids[1..len - 1].iter().zip(&labels[1..len - 1]);
            for (id, label) in inner {
                assert!(![pad, cls, sep].contains(id), "{ids:?}");
                // What the vocabulary does not know is special too.
                assert!(*label > 4 || (*label == IGNORE && *id == unk), "{label}");
            }
            cut += usize::from(len == 64);
        }
    }
    assert!(cut > 0);
}

#[test]
fn a_tokenizer_without_a_mask_and_shares_that_are_none_are_refused_with_the_way_out() {
    let place = Place::new();
    let refused = |kwargs: Value, change: &dyn Fn(&mut DataConfig)| {
        let mut config = place.config(&kwargs);
        change(&mut config);
        let opened = Pipeline::open(&config, &options(0));
        opened.err().expect("refused").to_string()
    };
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/sft/tokenizer.json"
    );
    let message = refused(json!({}), &|config| {
        config.tokenizer.path = Some(golden.to_owned())
    });
    for part in ["data.tokenizer.mask_token", "sft/tokenizer.json", "[MASK]"] {
        assert!(message.contains(part), "{message}");
    }
    let message = refused(json!({}), &|config| {
        config.tokenizer.path = Some(golden.to_owned());
        config.tokenizer.mask_token = Some("<none>".to_owned());
    });
    assert!(message.contains("has no token `<none>`"), "{message}");
    for (kwargs, part) in [
        (json!({ "mlm_probability": 0.0 }), "mlm_probability"),
        (
            json!({ "mask_replace_prob": 0.95 }),
            "together they are at most 1",
        ),
        (json!({ "max_ngrams": 0 }), "max_ngrams"),
    ] {
        let message = refused(kwargs, &|_| {});
        assert!(message.contains(part), "{message}");
    }
    // Any token will do, and a checkpoint says which.
    let mut config = place.config(&json!({}));
    config.tokenizer.path = Some(golden.to_owned());
    config.tokenizer.mask_token = Some("<|im_start|>".to_owned());
    let data = open(&config, 0);
    let files = data.tokenizer_files();
    let saved: Value = serde_json::from_slice(&files["tokenizer_config.json"]).unwrap();
    assert_eq!(saved["mask_token"], "<|im_start|>");
    let mask = data.tokenizer().mask_id().unwrap();
    assert!(
        batches(&data)
            .iter()
            .any(|batch| batch.input_ids.contains(&mask))
    );
}
