//! The front door with the built-in stories.

use serde_json::json;
use tt_collators::{Batch, Pipeline, PipelineOptions};
use tt_data::{DataConfig, Shard};

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
        "unknown collator `tokenise.Collator` (data.collator.type); known: tokenize.TokenizeCollator"
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
            "data/stories.yaml",
            include_str!("../../configs/data/stories.yaml"),
        ),
        (
            "data/text.yaml",
            include_str!("../../configs/data/text.yaml"),
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
