//! The front door with the built-in stories.

use serde_json::json;
use tt_collators::{
    Batch, BuildCollator, Collator, Examples, Layout, Pipeline, PipelineOptions, TABLE,
    TokenizeConfig,
};
use tt_config::Entry;
use tt_data::{DataConfig, DataError, Row, Shard};

fn options() -> PipelineOptions {
    PipelineOptions {
        cache: None,
        ..PipelineOptions::default()
    }
}

fn error(change: impl FnOnce(&mut DataConfig)) -> String {
    let mut config = DataConfig::default();
    change(&mut config);
    match Pipeline::open(&config, &options()) {
        Ok(_) => panic!("should have failed"),
        Err(error) => error.to_string(),
    }
}

fn rows(batches: &[Batch]) -> Vec<(Vec<u32>, Vec<i64>)> {
    let rows = batches.iter().flat_map(|batch| {
        let ids = batch.input_ids.chunks(batch.seq_len).map(<[u32]>::to_vec);
        ids.zip(batch.labels.chunks(batch.seq_len).map(<[i64]>::to_vec))
    });
    rows.collect()
}

#[test]
fn validation_is_the_same_for_every_seed_rank_and_batch_size() {
    let config = DataConfig {
        num_val_blocks: 10,
        ..DataConfig::default()
    };
    let open = |seed, micro_batch_size, shard| {
        let options = PipelineOptions {
            seed,
            micro_batch_size,
            shard,
            ..options()
        };
        Pipeline::open(&config, &options).unwrap()
    };
    let first = open(0, 5, Shard::default());
    let other = open(1, 4, Shard { rank: 1, world: 2 });
    let (first, other) = (rows(first.validation()), rows(other.validation()));
    assert_eq!((first.len(), other.len()), (10, 12));
    assert_eq!(first, other[..10]);
    // The rest of the last batch is padding, which the loss leaves out.
    assert!(
        other[10..]
            .iter()
            .all(|(_, labels)| labels.iter().all(|&label| label == -100))
    );
}

#[test]
fn seeds_decide_the_order_of_training_data() {
    let first_batch = |seed| {
        let options = PipelineOptions { seed, ..options() };
        let data = Pipeline::open(&DataConfig::default(), &options).unwrap();
        data.train(None).unwrap().next_batch().unwrap().unwrap()
    };
    assert_eq!(first_batch(1), first_batch(1));
    assert_ne!(first_batch(1), first_batch(2));
}

#[test]
fn baselines_are_measured_on_the_validation_targets() {
    let data = Pipeline::open(&DataConfig::default(), &options()).unwrap();
    let baselines = data.baselines().unwrap();
    assert_eq!(baselines, data.baselines().unwrap());
    // The stories' words are many and their phrases few.
    assert!(
        (5.0..6.5).contains(&baselines.unigram_nats),
        "{baselines:?}"
    );
    assert!((1.5..3.0).contains(&baselines.bigram_nats), "{baselines:?}");
}

#[test]
fn wrong_values_name_their_keys() {
    assert_eq!(
        error(|config| config.sequence_length = 1),
        "`data.sequence_length`: 1 is under 2"
    );
    assert_eq!(
        error(|config| config.num_val_blocks = 0),
        "`data.num_val_blocks`: 0 is under 1"
    );
    assert_eq!(
        error(|config| config.collator.r#type = "tokenise.Collator".to_owned()),
        "unknown collator `tokenise.Collator` (data.collator.type); known: tokenize.TokenizeCollator, chat.ChatCollator, masked_lm.MaskedLMCollator, packing.PackingCollator, \
         simple.SimpleCollator, single_sequence.SingleSequenceCollator, seq_to_seq.SeqToSeqCollator, preference.PreferenceCollator"
    );
    let message = error(|config| {
        config
            .collator
            .kwargs
            .insert("packed".to_owned(), json!(true));
    });
    assert!(
        message.starts_with("`data.collator.kwargs`: unknown field `packed`"),
        "{message}"
    );
}

#[test]
fn the_packaged_configs_are_what_the_types_accept() {
    const FILES: &[(&str, &str)] = &[
        ("default.yaml", "defaults:\n  - data: stories\n"),
        (
            "data/base.yaml",
            include_str!("../../../configs/data/base.yaml"),
        ),
        (
            "data/stories.yaml",
            include_str!("../../../configs/data/stories.yaml"),
        ),
        (
            "data/text.yaml",
            include_str!("../../../configs/data/text.yaml"),
        ),
    ];
    let read = |arguments: &[&str]| -> DataConfig {
        let composer = tt_config::Composer::new("default").embedded("test", FILES);
        composer
            .compose(arguments)
            .unwrap()
            .extract("data")
            .unwrap()
    };
    let stories = DataConfig::default();
    assert_eq!(
        DataConfig {
            dataset: stories.dataset.clone(),
            collator: stories.collator.clone(),
            ..read(&[])
        },
        stories
    );
    let text = read(&["data=text", "data.path=a.txt"]);
    assert_eq!(
        (text.dataset.url.as_str(), text.path.as_deref()),
        ("text", Some("a.txt"))
    );
}

#[test]
fn a_row_knows_the_lines_that_its_documents_are_from() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..60).map(|i| format!("word{i} and more\n\n")).collect();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, text).unwrap();
    let mut config = DataConfig {
        path: Some(path.display().to_string()),
        sequence_length: 16,
        num_val_blocks: 1,
        ..DataConfig::default()
    };
    config.dataset.url = "text".to_owned();
    let separator = ("separator".to_owned(), "blank_line".into());
    config.dataset.kwargs.extend([separator]);
    config.tokenizer.vocab_size = 300;
    let options = PipelineOptions {
        num_epochs: Some(2),
        ..options()
    };
    let data = Pipeline::open(&config, &options).unwrap();
    let mut batches = data.train(None).unwrap();
    let mut seen = 0;
    while let Some(batch) = batches.next_batch().unwrap() {
        let ends = batch.starts.iter().skip(1).chain([&batch.cursor]);
        for ((row, &from), &to) in batch.starts.iter().enumerate().zip(ends) {
            let range = row * batch.seq_len..(row + 1) * batch.seq_len;
            let documents = data.documents(from, to).unwrap();
            let segments = batch.segment_ids[range.clone()].iter().max();
            assert_eq!(
                documents.len(),
                *segments.unwrap() as usize,
                "{from} to {to}"
            );
            let text = data.tokenizer().decode(&batch.input_ids[range]).unwrap();
            // All but the first and the last stand in the row from beginning to end.
            let whole = documents.len().saturating_sub(1).max(1);
            for document in &documents[1..whole] {
                let at = document.to_string();
                let line: usize = at.rsplit_once(':').unwrap().1.parse().unwrap();
                let expected = format!("word{} and more", line / 2);
                assert!(text.contains(&expected), "{expected} at {at} in {text}");
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

fn text(folder: &std::path::Path, documents: &str) -> DataConfig {
    let path = folder.join("a.txt");
    std::fs::write(&path, documents).unwrap();
    let mut config = DataConfig {
        path: Some(path.to_str().unwrap().to_owned()),
        sequence_length: 4,
        ..DataConfig::default()
    };
    config.dataset.url = "text".to_owned();
    let separator = ("separator".to_owned(), "blank_line".into());
    config.dataset.kwargs.extend([separator]);
    config
}

#[test]
fn a_tokenizer_that_makes_nothing_of_the_texts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = text(folder.path(), "ab\n\ncd\n\nef");
    // Words of a vocabulary that has none of them, and no token for the unknown.
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"<|endoftext|>": 0, "x": 1}, "merges": []},
    });
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    config.tokenizer.path = Some(path.to_str().unwrap().to_owned());
    let Err(error) = Pipeline::open(&config, &options()) else {
        panic!("refused")
    };
    let error = error.to_string();
    assert!(
        error.contains("tokenizer.json: makes no token of any of"),
        "{error}"
    );
    assert!(error.contains("a.txt:"), "{error}");
}

#[test]
fn data_without_a_target_is_refused_with_collator_and_row() {
    let folder = tempfile::tempdir().unwrap();
    // Each row holds one token and the end that follows, and the next row begins with an end.
    let mut config = text(folder.path(), "a\n\nb\n\nc\n\nd");
    config.sequence_length = 2;
    config
        .collator
        .kwargs
        .insert("packing".to_owned(), json!(false));
    assert!(
        Pipeline::open(&config, &options()).is_ok(),
        "the end is predicted"
    );

    struct Deaf;
    impl Collator for Deaf {
        fn layout(&self) -> Layout {
            Layout::Packed
        }
        fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
            let example = examples.add();
            example
                .input_ids
                .extend(row.text("text")?.bytes().map(u32::from));
            example.label_none();
            Ok(())
        }
    }
    let build: BuildCollator = |_, _| Ok(Box::new(Deaf));
    let entry = Entry::new::<TokenizeConfig>("deaf.Deaf", "labels nothing", build);
    config.collator.r#type = "deaf.Deaf".to_owned();
    config.collator.kwargs.clear();
    let options = PipelineOptions {
        collators: TABLE.with(entry),
        ..options()
    };
    let Err(error) = Pipeline::open(&config, &options) else {
        panic!("refused")
    };
    let error = error.to_string();
    assert!(
        error.starts_with("nothing to predict in the validation split: from "),
        "{error}"
    );
    assert!(
        error.contains("a.txt:") && error.contains("collator `Deaf`"),
        "{error}"
    );
}
