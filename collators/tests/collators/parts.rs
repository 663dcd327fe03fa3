//! Long rows are encoded in parts: the batches are those of rows encoded whole, and little is encoded ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tt_collators::{Batch, BatchShape, Collator, Examples, Field, Layout, Loader, Prediction};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source};

struct Texts(Vec<String>);

impl Source for Texts {
    fn num_rows(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let source = "texts";
        row.at = Location::Generated { source, index };
        row.text_mut("text").push_str(&self.0[index as usize]);
        Ok(())
    }
}

/// Bytes as tokens, `part` of them at a time, the field `byte` beside them.
struct Bytes {
    layout: Layout,
    prediction: Prediction,
    part: usize,
    encoded: Arc<AtomicU64>,
}

impl Collator for Bytes {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn prediction(&self) -> Prediction {
        self.prediction
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::per_token("byte", -1i64)]
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let len = row.text("text")?.len();
        let whole = Bytes {
            part: len.max(1),
            encoded: Arc::clone(&self.encoded),
            ..*self
        };
        whole.encode_part(row, 0, examples).map(drop)
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let text = row.text("text")?.as_bytes();
        let end = (from + self.part).min(text.len());
        let new = text[from..end].iter();
        let example = examples.last_or_add();
        example
            .input_ids
            .extend(new.clone().map(|&byte| u32::from(byte)));
        example.label_all();
        example
            .field("byte")?
            .extend(new.map(|&byte| i64::from(byte)));
        self.encoded
            .fetch_add((end - from) as u64, Ordering::SeqCst);
        Ok((end < text.len()).then_some(end))
    }
}

#[derive(Debug, Clone)]
struct Setting {
    texts: Vec<String>,
    layout: Layout,
    prediction: Prediction,
    shape: BatchShape,
}

impl Setting {
    fn loader(&self, part: usize, cursor: Cursor, num_workers: usize) -> Loader {
        self.counted(part, cursor, num_workers).0
    }

    fn counted(&self, part: usize, cursor: Cursor, num_workers: usize) -> (Loader, Arc<AtomicU64>) {
        let source = Arc::new(Texts(self.texts.clone()));
        let order = Order::new(7, Shard::default(), source.num_rows()).unwrap();
        let encoded = Arc::default();
        let collator = Arc::new(Bytes {
            layout: self.layout,
            prediction: self.prediction,
            part,
            encoded: Arc::clone(&encoded),
        });
        let loader = Loader::new(
            source,
            order,
            collator,
            self.shape,
            cursor,
            None,
            num_workers,
        );
        (loader.unwrap(), encoded)
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let layout = prop_oneof![Just(Layout::Packed), Just(Layout::Padded)];
    let prediction = prop_oneof![Just(Prediction::NextToken), Just(Prediction::SameToken)];
    let texts = proptest::collection::vec("[a-z]{0,40}", 2..12).prop_filter("some text", |texts| {
        texts.iter().any(|text| !text.is_empty())
    });
    (texts, layout, prediction, 1..4_usize, 2..12_usize).prop_map(
        |(texts, layout, prediction, rows, seq_len)| Setting {
            texts,
            layout,
            prediction,
            shape: BatchShape {
                rows,
                seq_len,
                pad_id: 0,
                vocab_size: 256,
            },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn batches_are_the_same_for_any_parts_workers_and_interruption(
        setting in setting(), part in 1..15_usize, num_workers in 0..3_usize
    ) {
        let mut whole = setting.loader(usize::MAX / 2, Cursor::default(), 0);
        let expected: Vec<Batch> = (0..25).map(|_| whole.next_batch().unwrap().unwrap()).collect();
        let mut parts = setting.loader(part, Cursor::default(), num_workers);
        for expected in &expected {
            let batch = parts.next_batch().unwrap().unwrap();
            prop_assert_eq!(&batch, expected);
            parts.recycle(batch);
        }
        for cut in (0..20).step_by(3) {
            let mut resumed = setting.loader(part, expected[cut].cursor, num_workers);
            for expected in &expected[cut + 1..cut + 5] {
                prop_assert_eq!(&resumed.next_batch().unwrap().unwrap(), expected);
            }
        }
    }
}

fn books(count: usize, bytes: usize) -> Setting {
    Setting {
        texts: vec!["x".repeat(bytes); count],
        layout: Layout::Packed,
        prediction: Prediction::NextToken,
        shape: BatchShape {
            rows: 1,
            seq_len: 1000,
            pad_id: 0,
            vocab_size: 256,
        },
    }
}

#[test]
fn of_a_long_document_only_what_is_needed_is_encoded() {
    let part = 20_000;
    let (mut loader, encoded) = books(1, 1_000_000).counted(part, Cursor::default(), 1);
    for step in 1..=60_u64 {
        loader.next_batch().unwrap().unwrap();
        thread::sleep(Duration::from_millis(1));
        let most = (step * 1000).next_multiple_of(part as u64) + 2 * part as u64;
        let encoded = encoded.load(Ordering::SeqCst);
        assert!(encoded <= most, "{encoded} after {step} batches");
    }
}

#[test]
fn a_document_is_encoded_once_for_each_use() {
    let (mut loader, encoded) = books(1, 100_000).counted(20_000, Cursor::default(), 1);
    for _ in 0..300 {
        loader.next_batch().unwrap().unwrap();
    }
    let encoded = encoded.load(Ordering::SeqCst);
    assert!((300_000..=340_000).contains(&encoded), "{encoded}");
}

#[test]
fn what_is_encoded_ahead_is_bounded_for_documents_of_middling_length_too() {
    let (mut loader, encoded) = books(100, 10_000).counted(usize::MAX / 2, Cursor::default(), 1);
    loader.next_batch().unwrap().unwrap();
    thread::sleep(Duration::from_millis(100));
    let encoded = encoded.load(Ordering::SeqCst);
    assert!(encoded <= 120_000, "{encoded}");
}

#[test]
fn of_a_row_that_is_cut_off_the_rest_is_not_encoded() {
    let setting = Setting {
        layout: Layout::Padded,
        ..books(1, 1_000_000)
    };
    // Parts that are longer than a row of the batch, and just as long.
    for part in [5_000, setting.shape.seq_len] {
        let (mut loader, encoded) = setting.counted(part, Cursor::default(), 0);
        loader.next_batch().unwrap().unwrap();
        assert!(encoded.load(Ordering::SeqCst) <= 8 * part as u64);
    }
}
