//! Batches: what is in them, and that they are the same after any interruption.

use std::fs;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use tt_collators::{
    Batch, BatchShape, Collator, IGNORE, Layout, Loader, TokenizeCollator, TokenizeConfig,
};
use tt_data::{
    Cursor, DataConfig, DataError, Dataset, Location, Order, Row, Shard, Source, Tokenizer,
};

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let config = DataConfig::default();
    let dataset = Dataset::open(&config).unwrap();
    Arc::new(Tokenizer::open(&config.tokenizer, dataset.train.as_ref(), None).unwrap())
});

/// Rows of text that are given.
struct Texts(Vec<String>);

impl Source for Texts {
    fn num_rows(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        row.at = Location::Generated {
            source: "texts",
            index,
        };
        row.text_mut("text").push_str(&self.0[index as usize]);
        Ok(())
    }
}

fn texts(texts: &[&str]) -> Arc<dyn Source> {
    Arc::new(Texts(texts.iter().map(|text| text.to_string()).collect()))
}

fn collator(packing: bool) -> Arc<dyn Collator> {
    let config = TokenizeConfig {
        packing,
        ..TokenizeConfig::default()
    };
    Arc::new(TokenizeCollator::new(config, Arc::clone(&TOKENIZER)))
}

#[derive(Debug, Clone)]
struct Setting {
    texts: Vec<String>,
    packing: bool,
    shape: BatchShape,
    shard: Shard,
    num_epochs: Option<u64>,
}

impl Setting {
    fn loader(&self, cursor: Cursor, num_workers: usize) -> Result<Loader, DataError> {
        let source = Arc::new(Texts(self.texts.clone()));
        let order = Order::new(7, self.shard, source.num_rows())?;
        let collator = collator(self.packing);
        Loader::new(
            source,
            order,
            collator,
            self.shape,
            cursor,
            self.num_epochs,
            num_workers,
        )
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let texts = proptest::collection::vec("[a-z]{0,3}( [a-z]{1,4}){0,12}", 3..30);
    (
        texts,
        any::<bool>(),
        1..4_usize,
        2..12_usize,
        1..4_u64,
        0..3_u64,
    )
        .prop_map(|(texts, packing, rows, seq_len, world, rank)| Setting {
            texts,
            packing,
            shape: BatchShape {
                rows,
                seq_len,
                pad_id: 0,
                vocab_size: usize::MAX,
            },
            shard: Shard {
                rank: rank % world,
                world,
            },
            num_epochs: None,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batches_after_a_restored_cursor_are_those_of_a_run_never_interrupted(
        setting in setting(), cut in 0..40_usize
    ) {
        // Small data: forty batches go through several epochs.
        let mut whole = setting.loader(Cursor::default(), 1).unwrap();
        let batches: Vec<Batch> =
            (0..cut + 40).map(|_| whole.next_batch().unwrap().unwrap()).collect();
        let cursor = cut.checked_sub(1).map_or(Cursor::default(), |last| batches[last].cursor);
        let saved: Cursor = serde_json::from_str(&serde_json::to_string(&cursor).unwrap()).unwrap();
        let mut resumed = setting.loader(saved, 0).unwrap();
        for expected in &batches[cut..] {
            prop_assert_eq!(&resumed.next_batch().unwrap().unwrap(), expected);
        }
    }

    #[test]
    fn a_row_is_read_again_from_where_it_says_it_begins(setting in setting()) {
        let mut whole = setting.loader(Cursor::default(), 0).unwrap();
        for _ in 0..10 {
            let batch = whole.next_batch().unwrap().unwrap();
            prop_assert_eq!(batch.starts.len(), setting.shape.rows);
            for (row, &start) in batch.starts.iter().enumerate() {
                let mut alone = setting.clone();
                alone.shape.rows = 1;
                let again = alone.loader(start, 0).unwrap().next_batch().unwrap().unwrap();
                let range = row * batch.seq_len..(row + 1) * batch.seq_len;
                prop_assert_eq!(&again.input_ids[..], &batch.input_ids[range.clone()]);
                prop_assert_eq!(&again.segment_ids[..], &batch.segment_ids[range]);
            }
        }
    }

    #[test]
    fn batches_are_the_same_for_any_number_of_workers(setting in setting()) {
        let mut loaders: Vec<Loader> = [0, 1, 3]
            .map(|num_workers| setting.loader(Cursor::default(), num_workers).unwrap())
            .into();
        for _ in 0..30 {
            let batches: Vec<Batch> =
                loaders.iter_mut().map(|loader| loader.next_batch().unwrap().unwrap()).collect();
            prop_assert_eq!(&batches[0], &batches[1]);
            prop_assert_eq!(&batches[0], &batches[2]);
            for (loader, batch) in loaders.iter_mut().zip(batches) {
                loader.recycle(batch);
            }
        }
    }

    #[test]
    fn every_token_comes_once_an_epoch_over_all_ranks(setting in setting(), num_epochs in 1..3_u64) {
        let mut expected = Vec::new();
        for text in setting.texts.iter() {
            let mut ids = TOKENIZER.encode(text).unwrap();
            ids.push(TOKENIZER.eos_id());
            if !setting.packing {
                ids.truncate(setting.shape.seq_len);
            }
            for _ in 0..num_epochs {
                expected.extend(ids.iter().copied());
            }
        }
        let mut found = Vec::new();
        for rank in 0..setting.shard.world {
            let shard = Shard { rank, ..setting.shard };
            let setting = Setting { shard, num_epochs: Some(num_epochs), ..setting.clone() };
            let mut loader = setting.loader(Cursor::default(), 1).unwrap();
            while let Some(batch) = loader.next_batch().unwrap() {
                check_shape(&batch, &setting.shape);
                let tokens = batch.input_ids.iter().zip(&batch.segment_ids);
                found.extend(tokens.filter(|(_, segment)| **segment > 0).map(|(id, _)| *id));
            }
        }
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}

/// What holds for every batch.
fn check_shape(batch: &Batch, shape: &BatchShape) {
    let len = shape.rows * shape.seq_len;
    assert_eq!((batch.rows, batch.seq_len), (shape.rows, shape.seq_len));
    assert_eq!([batch.input_ids.len(), batch.labels.len()], [len; 2]);
    assert_eq!(
        [batch.segment_ids.len(), batch.position_ids.len()],
        [len; 2]
    );
    for i in 0..len {
        let starts_row = i % shape.seq_len == 0;
        let (segment, position) = (batch.segment_ids[i], batch.position_ids[i]);
        let expected = match segment {
            0 => (shape.pad_id, IGNORE, 0), // padding
            _ if starts_row || batch.segment_ids[i - 1] != segment => {
                let before = if starts_row {
                    0
                } else {
                    batch.segment_ids[i - 1]
                };
                assert_eq!(segment, before + 1);
                (batch.input_ids[i], IGNORE, 0)
            }
            _ => (
                batch.input_ids[i],
                i64::from(batch.input_ids[i]),
                batch.position_ids[i - 1] + 1,
            ),
        };
        assert_eq!(
            (batch.input_ids[i], batch.labels[i], position),
            expected,
            "at {i}"
        );
    }
    assert_eq!(batch.num_targets, batch.targets().count());
}

fn batches(texts: &[&str], packing: bool, rows: usize, seq_len: usize) -> Vec<Batch> {
    let setting = Setting {
        texts: texts.iter().map(|text| text.to_string()).collect(),
        packing,
        shape: BatchShape {
            rows,
            seq_len,
            pad_id: 9,
            vocab_size: usize::MAX,
        },
        shard: Shard::default(),
        num_epochs: Some(1),
    };
    let mut loader = setting.loader(Cursor::default(), 1).unwrap();
    std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
}

#[test]
fn a_document_that_does_not_fit_goes_on_as_a_segment_of_its_own() {
    // One document of digits, a token each, and its end.
    let [batch] = &batches(&["1234567"], true, 2, 5)[..] else {
        panic!("one batch")
    };
    let digit = |text: &str| TOKENIZER.encode(text).unwrap()[0];
    let [d1, d5, d6] = [digit("1"), digit("5"), digit("6")];
    assert_eq!(batch.input_ids[0], d1);
    assert_eq!(batch.input_ids[4..7], [d5, d6, digit("7")]);
    assert_eq!(batch.input_ids[7..], [TOKENIZER.eos_id(), 9, 9]);
    assert_eq!(batch.segment_ids, [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(batch.position_ids, [0, 1, 2, 3, 4, 0, 1, 2, 0, 0]);
    assert_eq!(batch.labels[5], IGNORE);
    assert_eq!(batch.labels[6], i64::from(digit("7")));
    assert_eq!(batch.num_targets, 6);
    assert_eq!(
        (batch.cursor.epoch, batch.cursor.row, batch.cursor.token),
        (1, 0, 0)
    );
}

#[test]
fn no_document_predicts_the_next() {
    let [batch] = &batches(&["12", "34", "56"], true, 1, 9)[..] else {
        panic!("one batch")
    };
    assert_eq!(batch.segment_ids, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    assert_eq!(batch.position_ids, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    let ignored: Vec<usize> = (0..9).filter(|&i| batch.labels[i] == IGNORE).collect();
    assert_eq!(ignored, [0, 3, 6]);
    // Each document predicts its own end.
    let eos = TOKENIZER.eos_id();
    assert_eq!(
        batch.targets().filter(|&(_, target)| target == eos).count(),
        3
    );
}

#[test]
fn without_packing_a_row_is_a_document_cut_off_or_padded() {
    let mut rows: Vec<Vec<u32>> = Vec::new();
    for batch in batches(&["1", "123456"], false, 1, 4) {
        assert_eq!(batch.segment_ids[0], 1);
        check_shape(
            &batch,
            &BatchShape {
                rows: 1,
                seq_len: 4,
                pad_id: 9,
                vocab_size: usize::MAX,
            },
        );
        rows.push(batch.input_ids);
    }
    rows.sort_by_key(|row| row[2] != 9);
    let digits = TOKENIZER.encode("1234").unwrap();
    assert_eq!(rows, [vec![digits[0], TOKENIZER.eos_id(), 9, 9], digits]);
}

#[test]
fn a_batch_that_is_given_back_is_written_again() {
    let order = Order::new(0, Shard::default(), Some(1)).unwrap();
    let shape = BatchShape {
        rows: 1,
        seq_len: 64,
        pad_id: 0,
        vocab_size: usize::MAX,
    };
    let start = Cursor::default();
    let source = texts(&["some text"]);
    let mut loader = Loader::new(source, order, collator(true), shape, start, None, 0).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let ids = batch.input_ids.as_ptr();
    loader.recycle(batch);
    let next = loader.next_batch().unwrap().unwrap();
    assert_eq!(next.input_ids.as_ptr(), ids);
}

#[test]
fn restoring_costs_the_same_wherever_the_cursor_points() {
    let counted = Arc::new(Counted(std::sync::atomic::AtomicU64::new(0)));
    let order = Order::new(0, Shard::default(), None).unwrap();
    let shape = BatchShape {
        rows: 1,
        seq_len: 8,
        pad_id: 0,
        vocab_size: usize::MAX,
    };
    let cursor = Cursor {
        epoch: 0,
        row: 1 << 40,
        token: 3,
    };
    let source: Arc<dyn Source> = Arc::clone(&counted) as _;
    let mut loader = Loader::new(source, order, collator(true), shape, cursor, None, 0).unwrap();
    loader.next_batch().unwrap().unwrap();
    let read = counted.0.load(std::sync::atomic::Ordering::Relaxed);
    assert!(read <= 8, "{read} rows were read"); // what a worker reads at a time
}

/// Endless, counting its reads.
struct Counted(std::sync::atomic::AtomicU64);

impl Source for Counted {
    fn num_rows(&self) -> Option<u64> {
        None
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        row.text_mut("text").push_str(&format!("{index:020}"));
        Ok(())
    }
}

#[test]
fn a_cursor_that_is_not_in_the_data_is_an_error() {
    let shape = BatchShape {
        rows: 1,
        seq_len: 4,
        pad_id: 0,
        vocab_size: usize::MAX,
    };
    let open = |row, token| {
        let order = Order::new(0, Shard::default(), Some(2))?;
        let cursor = Cursor {
            epoch: 3,
            row,
            token,
        };
        let source = texts(&["12", "34"]);
        Loader::new(source, order, collator(true), shape, cursor, None, 1)?.next_batch()
    };
    assert!(open(1, 2).is_ok());
    let expected = "the data position to resume from (epoch 3, row 2, token 0) is not in this data; \
                    has it changed?";
    assert_eq!(open(2, 0).unwrap_err().to_string(), expected);
    let expected = expected.replace("row 2, token 0", "row 1, token 3");
    assert_eq!(open(1, 3).unwrap_err().to_string(), expected);
}

#[test]
fn an_error_of_a_row_says_where_it_is() {
    let order = Order::new(0, Shard::default(), Some(1)).unwrap();
    let shape = BatchShape {
        rows: 1,
        seq_len: 4,
        pad_id: 0,
        vocab_size: usize::MAX,
    };
    let config = TokenizeConfig {
        text_field: "story".to_owned(),
        ..TokenizeConfig::default()
    };
    let collator = Arc::new(TokenizeCollator::new(config, Arc::clone(&TOKENIZER)));
    let start = Cursor::default();
    let mut loader = Loader::new(texts(&["a"]), order, collator, shape, start, None, 1).unwrap();
    assert_eq!(
        loader.next_batch().unwrap_err().to_string(),
        "texts, row 0: no field `story`; the row has: text"
    );
}

/// Makes no token of any row.
struct Nothing(Layout);

impl Collator for Nothing {
    fn layout(&self) -> Layout {
        self.0
    }
    fn encode(&self, _: &Row, _: &mut tt_collators::Examples) -> Result<(), DataError> {
        Ok(())
    }
}

impl Nothing {
    /// What comes of reading three rows from `cursor` on.
    fn error(self, cursor: Cursor) -> String {
        let order = Order::new(0, Shard::default(), Some(3)).unwrap();
        let shape = BatchShape {
            rows: 1,
            seq_len: 4,
            pad_id: 0,
            vocab_size: usize::MAX,
        };
        let source = texts(&["a", "b", "c"]);
        let loader = Loader::new(source, order, Arc::new(self), shape, cursor, None, 1);
        loader.unwrap().next_batch().unwrap_err().to_string()
    }
}

#[test]
fn rows_without_tokens_end_in_an_error_not_in_a_loop() {
    for layout in [Layout::Packed, Layout::Fitted(2)] {
        let error = Nothing(layout).error(Cursor::default());
        // One more and every row, the first of an epoch or the last, would have been among them.
        let expected =
            "collator `Nothing` makes no token of 5 rows one after another, among them texts, row ";
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_cursor_in_a_row_that_has_no_tokens_is_an_error() {
    for layout in [Layout::Packed, Layout::Fitted(2)] {
        let cursor = Cursor {
            epoch: 0,
            row: 0,
            token: 3,
        };
        let error = Nothing(layout).error(cursor);
        assert!(error.contains("row 0, token 3"), "{error}");
    }
}

#[test]
fn text_files_go_all_the_way_to_batches() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("a.txt"),
        "One two.\n\nThree four.\n\nFive six.",
    )
    .unwrap();
    let mut config = DataConfig::default();
    config.dataset.url = "text".to_owned();
    let separator = ("separator".to_owned(), "blank_line".into());
    config.dataset.kwargs.extend([separator]);
    config.path = Some(folder.path().join("*.txt").to_str().unwrap().to_owned());
    config.tokenizer.vocab_size = 260;
    config.sequence_length = 8;
    let options = tt_collators::PipelineOptions {
        micro_batch_size: 2,
        num_epochs: Some(1),
        cache: None,
        ..Default::default()
    };
    let data = tt_collators::Pipeline::open(&config, &options).unwrap();
    let decode = |batches: &[Batch]| -> String {
        batches
            .iter()
            .map(|batch| data.tokenizer().decode(&batch.input_ids).unwrap())
            .collect()
    };
    let mut loader = data.train(None).unwrap();
    let train: Vec<Batch> = std::iter::from_fn(|| loader.next_batch().unwrap()).collect();
    let all = decode(&train) + &decode(data.validation());
    for document in ["One two.", "Three four.", "Five six."] {
        assert_eq!(all.matches(document).count(), 1, "{document} in {all}");
    }
}
