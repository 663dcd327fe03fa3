//! Packing: concat-and-split, and whole examples that are fitted together; and columns of token ids.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tt_collators::{
    Batch, BatchShape, Collator, IGNORE, Loader, PackingCollator, SeqToSeqCollator, SimpleCollator,
    SingleSequenceCollator,
};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source, Tokenizer};

fn folder() -> PathBuf {
    let root = std::env::var_os("TT_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden"),
        PathBuf::from,
    );
    root.join("sft")
}

fn tokenizer() -> Arc<Tokenizer> {
    let path = folder().join("tokenizer.json");
    Arc::new(Tokenizer::load(&path, Some("<|endoftext|>")).unwrap())
}

/// Rows in the order that they are given in, whatever the order of the data.
struct Rows {
    rows: Vec<Row>,
    /// The position of each in the data's order.
    positions: Vec<usize>,
}

impl Rows {
    fn new(rows: Vec<Row>, order: &Order) -> Arc<Self> {
        let mut positions = vec![0; rows.len()];
        for position in 0..rows.len() {
            positions[order.row(0, position as u64) as usize] = position;
        }
        Arc::new(Self { rows, positions })
    }
}

impl Source for Rows {
    fn num_rows(&self) -> Option<u64> {
        Some(self.rows.len() as u64)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        row.clone_from(&self.rows[self.positions[index as usize]]);
        Ok(())
    }
}

fn row(json: &str) -> Row {
    Row {
        fields: serde_json::from_str(json).unwrap(),
        at: Location::Line {
            file: Path::new("rows.jsonl").into(),
            line: 7,
        },
    }
}

struct Setting {
    rows: Vec<Row>,
    collator: Arc<dyn Collator>,
    batch_rows: usize,
    seq_len: usize,
    num_epochs: u64,
}

impl Setting {
    fn new(rows: Vec<Row>, collator: impl Collator + 'static, seq_len: usize) -> Self {
        Self {
            rows,
            collator: Arc::new(collator),
            batch_rows: 1,
            seq_len,
            num_epochs: 1,
        }
    }

    fn loader(&self, cursor: Cursor, num_workers: usize) -> Loader {
        let order = Order::new(3, Shard::default(), Some(self.rows.len() as u64)).unwrap();
        let shape = BatchShape {
            rows: self.batch_rows,
            seq_len: self.seq_len,
            pad_id: 10,
            vocab_size: 1 << 16,
        };
        let source = Rows::new(self.rows.clone(), &order);
        let collator = Arc::clone(&self.collator);
        let epochs = Some(self.num_epochs);
        Loader::new(source, order, collator, shape, cursor, epochs, num_workers).unwrap()
    }

    fn batches(&self, cursor: Cursor, num_workers: usize) -> Result<Vec<Batch>, DataError> {
        let mut loader = self.loader(cursor, num_workers);
        std::iter::from_fn(|| loader.next_batch().transpose()).collect()
    }

    fn first(&self) -> Batch {
        self.batches(Cursor::default(), 0).unwrap().remove(0)
    }

    fn error(&self) -> String {
        self.batches(Cursor::default(), 0).unwrap_err().to_string()
    }
}

fn packing(kwargs: Value) -> PackingCollator {
    PackingCollator::new(serde_json::from_value(kwargs).unwrap(), tokenizer())
}

#[test]
fn golden_sft_texts_are_joined_and_cut_into_blocks() {
    #[derive(Deserialize)]
    struct Golden {
        texts: String,
        separator_id: u32,
        block_size: usize,
        total_tokens: usize,
        dropped_tokens: usize,
        blocks: Vec<Vec<u32>>,
    }
    let golden = std::fs::read(folder().join("packing.json")).expect("a golden file");
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let texts = std::fs::read_to_string(folder().join(&golden.texts)).expect("a golden file");
    let collator = packing(json!({"method": "concat"}));
    let setting = Setting::new(
        texts.lines().map(row).collect(),
        collator,
        golden.block_size,
    );
    let batches = setting.batches(Cursor::default(), 2).unwrap();
    let is_full = |batch: &&Batch| !batch.segment_ids.contains(&0);
    let blocks: Vec<Vec<u32>> = batches
        .iter()
        .filter(is_full)
        .map(|it| it.input_ids.clone())
        .collect();
    assert_eq!(blocks, golden.blocks);
    // The rest, which is dropped there, is padded here.
    let all = batches.iter().flat_map(|batch| &batch.segment_ids);
    assert_eq!(all.filter(|id| **id > 0).count(), golden.total_tokens);
    let rest = golden.total_tokens - golden.blocks.len() * golden.block_size;
    assert_eq!(rest, golden.dropped_tokens);
    for batch in &batches {
        for (i, &id) in batch.input_ids[..golden.block_size - 1].iter().enumerate() {
            let (here, next) = (batch.segment_ids[i], batch.segment_ids[i + 1]);
            assert_eq!(
                id == golden.separator_id && next > 0,
                here > 0 && next > here
            );
            let restarts = next > here;
            assert_eq!(batch.position_ids[i + 1] == 0, restarts || next == 0);
            assert_eq!(batch.labels[i + 1] == IGNORE, restarts || next == 0);
        }
    }
}

/// Rows of ids: of row `i`, as many times `i` as it is long.
fn id_rows(lengths: &[usize]) -> Vec<Row> {
    let lengths = lengths.iter().enumerate();
    lengths
        .map(|(i, &len)| row(&json!({"ids": vec![i; len]}).to_string()))
        .collect()
}

/// Examples of a batch as (id, length), row by row.
fn examples(batch: &Batch) -> Vec<Vec<(u32, usize)>> {
    let rows = batch
        .input_ids
        .chunks(batch.seq_len)
        .zip(batch.segment_ids.chunks(batch.seq_len));
    rows.map(|(ids, segments)| {
        let last = segments.iter().copied().max().unwrap_or_default();
        let of = |segment| {
            let first = segments.iter().position(|it| *it == segment).unwrap();
            (
                ids[first],
                segments.iter().filter(|it| **it == segment).count(),
            )
        };
        (1..=last).map(of).collect()
    })
    .collect()
}

#[test]
fn whole_examples_are_fitted_into_rows_within_a_window() {
    let rows = id_rows(&[2, 5, 4, 7, 1, 3, 8, 6]);
    let collator = packing(json!({"field": "ids", "window": 7}));
    let batches = Setting::new(rows, collator, 10)
        .batches(Cursor::default(), 0)
        .unwrap();
    let found: Vec<_> = batches.iter().flat_map(examples).collect();
    let expected: &[&[(u32, usize)]] = &[
        &[(0, 2), (6, 8)],
        &[(1, 5), (2, 4), (4, 1)],
        &[(3, 7), (5, 3)],
        &[(7, 6)],
    ];
    assert_eq!(found, expected);
    let batch = &batches[0];
    assert_eq!(batch.position_ids, [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(batch.labels[..4], [IGNORE, 0, IGNORE, 6]);
}

#[test]
fn what_is_longer_than_a_row_is_cut_into_pieces() {
    let collator = packing(json!({"field": "ids"}));
    let batches = Setting::new(id_rows(&[1, 23]), collator, 10)
        .batches(Cursor::default(), 0)
        .unwrap();
    let found: Vec<_> = batches.iter().flat_map(examples).collect();
    let expected: &[&[(u32, usize)]] = &[&[(0, 1), (1, 3)], &[(1, 10)], &[(1, 10)]];
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In every epoch each example is there once and whole, and what comes after a restored cursor is what would have come.
    #[test]
    fn fitted_rows_resume_exactly_and_use_each_row_once(
        lengths in proptest::collection::vec(0_usize..12, 2..40),
        window in 1_usize..9,
        batch_rows in 1_usize..4,
    ) {
        prop_assume!(lengths.iter().any(|len| *len > 0));
        let mut setting = Setting::new(
            id_rows(&lengths),
            packing(json!({"field": "ids", "window": window})),
            11,
        );
        setting.batch_rows = batch_rows;
        setting.num_epochs = 2;
        let batches = setting.batches(Cursor::default(), 0).unwrap();
        let mut counts = vec![0; lengths.len()];
        for (id, len) in batches.iter().flat_map(examples).flatten() {
            prop_assert_eq!(len, lengths[id as usize]);
            counts[id as usize] += 1;
        }
        for (count, len) in counts.iter().zip(&lengths) {
            prop_assert_eq!(*count, if *len > 0 { 2 } else { 0 });
        }
        for (i, batch) in batches.iter().enumerate() {
            if (batch.cursor.epoch) < 2 {
                let rest = setting.batches(batch.cursor, i % 3).unwrap();
                prop_assert_eq!(&rest[..], &batches[i + 1..]);
            }
        }
    }
}

#[test]
fn tokenised_columns_pass_through_with_their_labels() {
    let collator = SimpleCollator::new(Default::default());
    let rows = vec![row(
        r#"{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}"#,
    )];
    let batch = Setting::new(rows, collator, 6).first();
    assert_eq!(batch.input_ids, [5, 6, 7, 8, 10, 10]);
    assert_eq!(batch.labels, [IGNORE, IGNORE, 7, 8, IGNORE, IGNORE]);
    assert_eq!(batch.segment_ids, [1, 1, 1, 1, 0, 0]);
    // Without labels all are to predict, and padding on either side is none of it.
    let collator = SimpleCollator::new(Default::default());
    let rows = vec![row(
        r#"{"input_ids": [0, 6, 7, 0], "attention_mask": [0, 1, 1, 0]}"#,
    )];
    let batch = Setting::new(rows, collator, 4).first();
    assert_eq!(batch.input_ids, [6, 7, 10, 10]);
    assert_eq!(batch.labels, [IGNORE, 7, IGNORE, IGNORE]);
}

#[test]
fn tokenised_columns_that_do_not_fit_are_refused_with_their_place() {
    for (record, why) in [
        (
            r#"{"input_ids": [1, -2]}"#,
            "`input_ids`: -2, number 1 of the list, is no token id",
        ),
        (
            r#"{"input_ids": [1, 2], "labels": [1]}"#,
            "1 values in `labels` for 2 in `input_ids`",
        ),
        (
            r#"{"input_ids": [1, 2], "labels": [1, 70000]}"#,
            "70000 is neither -100",
        ),
        (
            r#"{"input_ids": [1, 70000]}"#,
            "70000 is beyond the vocabulary",
        ),
        (
            r#"{"input_ids": [1.5]}"#,
            "field `input_ids` is a list, where a list of integers is needed",
        ),
        (r#"{"ids": [1]}"#, "no field `input_ids`"),
    ] {
        let error = Setting::new(
            vec![row(record)],
            SimpleCollator::new(Default::default()),
            8,
        )
        .error();
        assert!(
            error.contains(why) && error.contains("rows.jsonl:7"),
            "{record}: {error}"
        );
    }
}

#[test]
fn a_single_sequence_is_cut_off_or_padded() {
    let collator = || SingleSequenceCollator::new(Default::default());
    let rows = || vec![row(r#"{"input_ids": [5, 6, 7]}"#)];
    assert_eq!(
        Setting::new(rows(), collator(), 2).first().input_ids,
        [5, 6]
    );
    assert_eq!(
        Setting::new(rows(), collator(), 4).first().labels,
        [IGNORE, 6, 7, IGNORE]
    );
}

#[test]
fn of_an_input_and_its_output_the_output_is_trained_on() {
    let collator =
        |kwargs: Value| SeqToSeqCollator::new(serde_json::from_value(kwargs).unwrap(), tokenizer());
    let ids = || vec![row(r#"{"input_ids": [5, 6, 7], "output_ids": [8, 9]}"#)];
    let batch = Setting::new(ids(), collator(json!({})), 6).first();
    assert_eq!(batch.input_ids, [5, 6, 7, 8, 9, 10]);
    assert_eq!(batch.labels, [IGNORE, IGNORE, IGNORE, 8, 9, IGNORE]);
    // The output stays where an input is too long, whose beginning does not.
    let batch = Setting::new(ids(), collator(json!({})), 4).first();
    assert_eq!(batch.input_ids, [6, 7, 8, 9]);
    assert_eq!(batch.left_out.cut_tokens, 1);
    let batch = Setting::new(
        ids(),
        collator(json!({"input_length": 2, "output_length": 1})),
        4,
    )
    .first();
    assert_eq!(batch.input_ids, [5, 6, 8, 10]);
    // Text has an end.
    let text = vec![row(r#"{"q": "hello world", "a": "don't"}"#)];
    let batch = Setting::new(
        text,
        collator(json!({"input_field": "q", "output_field": "a"})),
        32,
    )
    .first();
    let tokenizer = tokenizer();
    let trained = batch
        .labels
        .iter()
        .filter(|label| **label != IGNORE)
        .map(|label| *label as u32);
    let trained: Vec<u32> = trained.collect();
    assert_eq!(
        tokenizer.as_hf().decode(&trained, false).unwrap(),
        "don't<|endoftext|>"
    );
}
