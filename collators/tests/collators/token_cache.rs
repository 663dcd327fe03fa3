//! Tokens on disk: no batch is another for them, and none is stale, cut off or of something else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;
use tt_collators::{Batch, Pipeline, PipelineOptions, TokenProgress, Tokenized};
use tt_data::{Cursor, DataConfig, DataError, Nulls, TokenCacheConfig};

/// 700 rows, some null, some longer than a part and a row of a batch.
fn write_rows(path: &Path) {
    let mut lines = String::new();
    for i in 0..700 {
        let text = match i % 50 {
            7 => Value::Null,
            9 => "A kite flies over the harbor, and a goat sees it.\n"
                .repeat(2000)
                .into(),
            n => format!("Row {i}: {} kites.", "many ".repeat(n)).into(),
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
        write_rows(&folder.path().join("rows.jsonl"));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, is_cached: bool) -> DataConfig {
        let mut config = DataConfig {
            path: Some(self.path("rows.jsonl").display().to_string()),
            nulls: Nulls::Skip,
            sequence_length: 64,
            num_val_blocks: 2,
            ..DataConfig::default()
        };
        config.dataset.url = "jsonl".to_owned();
        config.tokenizer.vocab_size = 300;
        if is_cached {
            let folder = self.path("tokens").display().to_string();
            config.token_cache = TokenCacheConfig::Folder(folder);
        }
        config
    }

    /// The caches there are.
    fn caches(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tokens")).into_iter().flatten();
        entries.map(|it| it.unwrap().path()).collect()
    }
}

fn open(config: &DataConfig) -> Pipeline {
    let options = PipelineOptions {
        cache: None,
        num_epochs: Some(2),
        ..PipelineOptions::default()
    };
    Pipeline::open(config, &options).unwrap()
}

fn filled(config: &DataConfig) -> (Pipeline, Tokenized) {
    let mut data = open(config);
    let tokenized = data.fill_token_cache(&|_| true).unwrap().unwrap();
    (data, tokenized)
}

fn batches(data: &Pipeline, from: Option<Cursor>) -> Vec<Batch> {
    let mut loader = data.train(from).unwrap();
    std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
}

#[test]
fn batches_are_those_without_a_cache_in_every_layout_and_from_every_cursor() {
    let place = Place::new();
    let layouts = [
        ("tokenize.TokenizeCollator", json!({})),
        ("tokenize.TokenizeCollator", json!({ "packing": false })),
        ("packing.PackingCollator", json!({ "window": 20 })),
        ("packing.PackingCollator", json!({ "method": "concat" })),
    ];
    for (number, (collator, kwargs)) in layouts.into_iter().enumerate() {
        let configs = [false, true].map(|is_cached| {
            let mut config = place.config(is_cached);
            config.collator.r#type = collator.to_owned();
            config.collator.kwargs = kwargs.as_object().unwrap().clone();
            config
        });
        let plain = open(&configs[0]);
        let (cached, tokenized) = filled(&configs[1]);
        // All of them keep the same tokens.
        assert_eq!(tokenized.made_rows, if number == 0 { 665 } else { 0 });
        let all = batches(&plain, None);
        assert!(all.len() > 50);
        assert!(all == batches(&cached, None), "{collator} {kwargs}");
        for at in [3, all.len() / 2, all.len() - 2] {
            // Made with one, gone on with the other.
            let cursor = Some(all[at].cursor);
            assert!(
                all[at + 1..] == batches(&cached, cursor),
                "{collator} {kwargs}: {at}"
            );
        }
    }
    assert_eq!(place.caches().len(), 1);
}

/// Conversations of which one is too long for a row, one has no answer that fits, and one is malformed.
#[test]
fn conversations_are_kept_with_what_is_trained_on() {
    let place = Place::new();
    let record = |question: &str, answer: &str| json!({"instruction": question, "output": answer});
    let mut records: Vec<Value> = (0..60)
        .map(|i| {
            record(
                &format!("How many are {i} kites?"),
                &"many ".repeat(i % 9 + 1),
            )
        })
        .collect();
    records[3] = record("Short?", &"a long answer ".repeat(60));
    records[5] = record(&"long ".repeat(200), "Never seen.");
    records[7] = json!({"instruction": "No answer."});
    let lines: String = records.iter().map(|it| format!("{it}\n")).collect();
    fs::write(place.path("rows.jsonl"), lines).unwrap();
    let config = |kwargs: Value, is_cached| {
        let mut config = place.config(is_cached);
        (config.nulls, config.sequence_length) = (Nulls::Error, 192);
        config.collator.r#type = "chat.ChatCollator".to_owned();
        config.collator.kwargs = kwargs.as_object().unwrap().clone();
        let own = config.collator.kwargs.entry("template");
        own.or_insert_with(|| "chatml".into());
        config
            .collator
            .kwargs
            .insert("on_bad_record".to_owned(), "skip".into());
        config
    };
    let mut made = Vec::new();
    for kwargs in [
        json!({}),
        json!({"packing": true}),
        json!({"on_too_long": "skip"}),
        json!({"train_on": "all"}),
        json!({"template": "llama3"}),
    ] {
        let plain = open(&config(kwargs.clone(), false));
        let (cached, tokenized) = filled(&config(kwargs.clone(), true));
        let all = batches(&plain, None);
        assert!(all.iter().any(|batch| batch.left_out.rows > 0), "{kwargs}");
        assert!(all == batches(&cached, None), "{kwargs}");
        let at = all.len() / 2;
        assert!(all[at + 1..] == batches(&cached, Some(all[at].cursor)));
        made.push(tokenized.made_rows > 0);
    }
    // How rows are filled changes no token; what is trained on does, and so does the template.
    assert_eq!(made, [true, false, false, true, true]);
}

#[test]
fn damaged_tokens_are_encoded_again_and_made_anew() {
    let place = Place::new();
    let expected = batches(&open(&place.config(false)), None);
    filled(&place.config(true));
    let file = place.caches()[0].join("00001.tokens");
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[1000] ^= 1; // a token: nothing that opening would see
    fs::write(&file, &damaged).unwrap();
    let (data, tokenized) = filled(&place.config(true));
    assert_eq!(tokenized.made_rows, 0);
    assert!(expected == batches(&data, None));
    assert!(!file.exists() && file.with_extension("damaged").exists());
    assert!(expected == batches(&data, None));
    let (data, tokenized) = filled(&place.config(true));
    assert_eq!(tokenized.made_rows, 256);
    assert_eq!(fs::read(&file).unwrap(), whole);
    // Gone while it is in use, as when somebody deletes the folder.
    fs::remove_dir_all(&place.caches()[0]).unwrap();
    assert!(expected == batches(&data, None));
}

/// What a cache of tokens must not outlive, and what it must: each has gone wrong elsewhere.
#[test]
fn a_cache_is_another_for_what_changes_tokens_and_for_nothing_else() {
    let place = Place::new();
    let (_, first) = filled(&place.config(true));
    let same = |config: DataConfig| assert_eq!(filled(&config).1.made_rows, 0);
    let other = |config: DataConfig| assert_eq!(filled(&config).1.made_rows, first.rows);

    let mut config = place.config(true);
    (config.num_workers, config.sequence_length) = (3, 32);
    same(config);
    // Under another name, on the same day.
    fs::create_dir(place.path("moved")).unwrap();
    let moved = place.path("moved/rows.jsonl");
    fs::rename(place.path("rows.jsonl"), &moved).unwrap();
    let mut config = place.config(true);
    config.path = Some(moved.display().to_string());
    same(config.clone());
    fs::rename(place.path("tokens"), place.path("elsewhere")).unwrap();
    config.token_cache = TokenCacheConfig::Folder(place.path("elsewhere").display().to_string());
    same(config);
    fs::rename(place.path("elsewhere"), place.path("tokens")).unwrap();
    fs::rename(&moved, place.path("rows.jsonl")).unwrap();

    let mut config = place.config(true);
    config.tokenizer.vocab_size = 257;
    other(config);
    let mut config = place.config(true);
    config.tokenizer.eos_token = Some("!".to_owned());
    config.tokenizer.path = Some(save_tokenizer(&place));
    other(config);
    let mut config = place.config(true);
    config.val_fraction = 0.051; // as many rows, and yet other data
    other(config);
    // Written anew within the same second, of the same length, equal at both ends.
    let path = place.path("rows.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let at = text.len() / 2 + text[text.len() / 2..].find("kite").unwrap();
    fs::write(&path, [&text[..at], "kits", &text[at + 4..]].concat()).unwrap();
    let later = SystemTime::now() + Duration::from_millis(10);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(later)
        .unwrap();
    other(place.config(true));
}

fn save_tokenizer(place: &Place) -> String {
    let folder = place.path("tokenizer");
    open(&place.config(false))
        .tokenizer()
        .save(&folder)
        .unwrap();
    folder.display().to_string()
}

#[test]
fn a_mixture_is_weighed_anew_without_tokenizing_anew() {
    let place = Place::new();
    fs::copy(place.path("rows.jsonl"), place.path("more.jsonl")).unwrap();
    let mixture = |weights: [f64; 2], is_cached| {
        let mut config = place.config(is_cached);
        let source = |name: &str, weight: f64| json!({ "url": "jsonl", "path": place.path(name), "weight": weight });
        let sources = [
            source("rows.jsonl", weights[0]),
            source("more.jsonl", weights[1]),
        ];
        config.dataset.url = "mixture".to_owned();
        config
            .dataset
            .kwargs
            .insert("sources".to_owned(), json!(sources));
        config.tokenizer.path = Some(save_tokenizer(&place));
        config
    };
    let (_, first) = filled(&mixture([1.0, 1.0], true));
    assert_eq!((first.rows, first.made_rows), (1330, 1330));
    let (cached, again) = filled(&mixture([1.0, 3.0], true));
    assert_eq!(again.made_rows, 0);
    let plain = open(&mixture([1.0, 3.0], false));
    assert!(batches(&plain, None) == batches(&cached, None));
    // Alone, a data set has the tokens that it has in a mixture.
    let mut config = place.config(true);
    config.tokenizer.path = Some(save_tokenizer(&place));
    assert_eq!(filled(&config).1.made_rows, 0);
}

#[test]
fn making_can_be_called_off_and_what_cannot_be_kept_is_refused() {
    let place = Place::new();
    let mut data = open(&place.config(true));
    let stopped = data.fill_token_cache(&|TokenProgress { num_rows, .. }| {
        assert_eq!(num_rows, 665);
        false
    });
    assert!(matches!(stopped, Err(DataError::Interrupted) | Ok(_)));

    let refused = |change: &dyn Fn(&mut DataConfig)| {
        let mut config = place.config(true);
        change(&mut config);
        let opened = Pipeline::open(&config, &PipelineOptions::default());
        opened.err().unwrap().to_string()
    };
    let message = refused(&|config| config.dataset = DataConfig::default().dataset);
    assert!(message.contains("`stories` has no end"), "{message}");
    let message = refused(&|config| config.collator.r#type = "simple.SimpleCollator".to_owned());
    assert!(
        message.contains("SimpleCollator does not make"),
        "{message}"
    );
    // With `error` a null ends the making as it would end the run, and says where it is.
    let mut config = place.config(true);
    config.nulls = Nulls::Error;
    config.num_val_blocks = 1;
    let mut data = open(&config);
    let error = data.fill_token_cache(&|_| true).unwrap_err().to_string();
    assert!(error.contains("rows.jsonl:"), "{error}");
}
