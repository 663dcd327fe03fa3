//! A run that begins at a step has the batches of one that came there.

use std::fs;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tt_collators::{Batch, Pipeline, PipelineOptions};
use tt_data::{Cursor, DataConfig, DataError, Nulls, TokenCacheConfig};

const EPOCHS: u64 = 3;

struct Place(TempDir);

impl Place {
    /// 40 rows of many lengths, of which some are longer than a row of a batch.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = |i: usize| format!("Row {i}: {}kites.", "many ".repeat(i * i % 37));
        let lines = (0..40).map(|i| format!("{}\n", json!({ "text": text(i) })));
        fs::write(folder.path().join("rows.jsonl"), lines.collect::<String>()).unwrap();
        Self(folder)
    }

    fn config(&self, collator: &str, kwargs: Value) -> DataConfig {
        let mut config = DataConfig {
            path: Some(self.0.path().join("rows.jsonl").display().to_string()),
            sequence_length: 64,
            num_val_blocks: 2,
            ..DataConfig::default()
        };
        config.dataset.url = "jsonl".to_owned();
        config.tokenizer.vocab_size = 300;
        config.collator.r#type = collator.to_owned();
        config.collator.kwargs = kwargs.as_object().cloned().unwrap_or_else(Map::new);
        config
    }

    fn cached(&self, collator: &str, kwargs: Value) -> DataConfig {
        let folder = self.0.path().join("tokens").display().to_string();
        DataConfig {
            token_cache: TokenCacheConfig::Folder(folder),
            ..self.config(collator, kwargs)
        }
    }
}

fn open(config: &DataConfig, start_batches: u64) -> Pipeline {
    let options = PipelineOptions {
        seed: 5,
        micro_batch_size: 3,
        num_epochs: Some(EPOCHS),
        start_batches,
        cache: None,
        ..PipelineOptions::default()
    };
    let mut data = Pipeline::open(config, &options).unwrap();
    data.fill_token_cache(&|_| true).unwrap();
    data
}

fn batches(data: &Pipeline) -> Vec<Batch> {
    let mut loader = data.train(None).unwrap();
    std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
}

fn refused(config: &DataConfig, start_batches: u64) -> String {
    match open(config, start_batches).start() {
        Err(DataError::BadValue { key, message }) => format!("{key}: {message}"),
        other => panic!("{other:?}"),
    }
}

const TOKENIZE: &str = "tokenize.TokenizeCollator";
const PACKING: &str = "packing.PackingCollator";

#[test]
fn the_batches_from_a_step_on_are_those_of_a_run_that_came_there() {
    let place = Place::new();
    for config in [
        place.config(TOKENIZE, json!({"packing": false})),
        place.cached(TOKENIZE, json!({})),
        place.cached(PACKING, json!({"method": "concat"})),
    ] {
        let data = open(&config, 0);
        assert_eq!(data.start().unwrap(), Cursor::default());
        let all = batches(&data);
        let count = data.num_batches(None).unwrap().unwrap();
        assert_eq!(count, all.len() as u64);
        assert!(all[0].cursor.epoch == 0 && all.last().unwrap().cursor.epoch == EPOCHS);
        for start in (1..count).step_by(3) {
            let data = open(&config, start);
            let begins = all[start as usize - 1].cursor;
            assert_eq!(data.start().unwrap(), begins, "batch {start}");
            assert_eq!(batches(&data), all[start as usize..], "batch {start}");
            assert_eq!(data.num_batches(None).unwrap(), Some(count - start));
        }
        let beyond = refused(&config, 10 * count);
        assert!(beyond.contains("trainer.num_epochs is 3"), "{beyond}");
    }
}

#[test]
fn a_step_that_is_only_known_by_all_before_is_refused() {
    let place = Place::new();
    let packed = refused(&place.config(TOKENIZE, json!({})), 1);
    assert!(packed.starts_with("data.start_step: ") && packed.contains("data.token_cache=true"));
    let fitted = refused(&place.cached(PACKING, json!({})), 1);
    assert!(fitted.contains("method=concat"), "{fitted}");
    let skipping = DataConfig {
        nulls: Nulls::Skip,
        ..place.config(TOKENIZE, json!({"packing": false}))
    };
    let skipping = refused(&skipping, 1);
    assert!(skipping.contains("data.nulls=skip"), "{skipping}");
}
