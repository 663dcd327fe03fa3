//! Fields that a collator adds, and several examples of one row of data.

use std::sync::Arc;

use tt_collators::{
    Batch, BatchShape, Collator, Examples, Field, IGNORE, Layout, Loader, Prediction, Slice,
};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source};

/// Rows of words.
struct Words(&'static [&'static str]);

impl Source for Words {
    fn num_rows(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let source = "words";
        row.at = Location::Generated { source, index };
        row.text_mut("text").push_str(self.0[index as usize]);
        Ok(())
    }
}

/// Bytes as tokens; what is left is said by a closure.
struct Bytes<F> {
    layout: Layout,
    prediction: Prediction,
    fields: Vec<Field>,
    encode: F,
}

impl<F: Fn(&str, &mut Examples) -> Result<(), DataError> + Send + Sync> Collator for Bytes<F> {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn prediction(&self) -> Prediction {
        self.prediction
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        (self.encode)(row.text("text")?, examples)
    }

    fn name(&self) -> &'static str {
        "Bytes"
    }
}

fn bytes<F>(layout: Layout, fields: &[Field], encode: F) -> Arc<dyn Collator>
where
    F: Fn(&str, &mut Examples) -> Result<(), DataError> + Send + Sync + 'static,
{
    Arc::new(Bytes {
        layout,
        prediction: Prediction::NextToken,
        fields: fields.to_vec(),
        encode,
    })
}

fn ids(text: &str) -> impl Iterator<Item = u32> {
    text.bytes().map(u32::from)
}

/// Of rows of data in order of their number.
fn loader(
    words: &'static [&'static str],
    collator: Arc<dyn Collator>,
    (rows, seq_len): (usize, usize),
    cursor: Cursor,
    num_workers: usize,
) -> Result<Loader, DataError> {
    let order = Order::new(3, Shard::default(), Some(words.len() as u64))?;
    let shape = BatchShape {
        rows,
        seq_len,
        pad_id: 0,
        vocab_size: usize::MAX,
    };
    let source = Arc::new(Words(words));
    Loader::new(source, order, collator, shape, cursor, None, num_workers)
}

fn first(
    words: &'static [&'static str],
    collator: Arc<dyn Collator>,
    shape: (usize, usize),
) -> Batch {
    let mut loader = loader(words, collator, shape, Cursor::default(), 0).unwrap();
    loader.next_batch().unwrap().unwrap()
}

fn error(words: &'static [&'static str], collator: Arc<dyn Collator>) -> String {
    let loader = loader(words, collator, (2, 4), Cursor::default(), 1);
    match loader.and_then(|mut loader| loader.next_batch()) {
        Ok(_) => panic!("a batch"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn fields_go_with_their_tokens_into_packed_rows_and_have_a_padding_of_their_own() {
    let fields = [Field::weights(), Field::per_token("byte", -1i64)];
    let collator = |layout| {
        bytes(layout, &fields, |text, examples| {
            let example = examples.add();
            example.input_ids.extend(ids(text));
            example.label_all();
            let weights = ids(text).map(|id| id as f32 / 2.0);
            example.field("weights")?.extend(weights);
            example.field("byte")?.extend(ids(text).map(i64::from));
            Ok(())
        })
    };
    for (layout, num_tokens) in [(Layout::Packed, 12), (Layout::Padded, 7)] {
        let batch = first(&["abcde", "fgh"], collator(layout), (3, 4));
        let at = batch.segment_ids.iter().zip(&batch.input_ids);
        let expected: Vec<i64> = at
            .map(|(&segment, &id)| if segment > 0 { i64::from(id) } else { -1 })
            .collect();
        assert_eq!(batch.field("byte"), Some(Slice::I64(&expected)));
        let weights = batch.input_ids.iter().map(|&id| id as f32 / 2.0);
        let weights: Vec<f32> = weights.collect();
        assert_eq!(batch.field("weights"), Some(Slice::F32(&weights)));
        let filled = batch.segment_ids.iter().filter(|&&segment| segment > 0);
        assert!(filled.count() >= num_tokens, "{layout:?}: {batch:?}");
    }
    let batch = first(&["ab"], collator(Layout::Padded), (1, 3));
    assert_eq!(batch.field("input_ids"), Some(Slice::U32(&[97, 98, 0])));
    assert_eq!(
        batch.field("labels"),
        Some(Slice::I64(&[IGNORE, 98, IGNORE]))
    );
    assert_eq!(batch.field("byte"), Some(Slice::I64(&[97, 98, -1])));
    assert_eq!(batch.field("reward"), None);
}

/// Of `ab|c` the pair `ab` and `c`, with a sign; nothing of a row without an answer.
fn pairs() -> Arc<dyn Collator> {
    let fields = [Field::per_row("sign", 0.0f32)];
    bytes(Layout::Grouped(2), &fields, |text, examples| {
        let Some((chosen, rejected)) = text.split_once('|') else {
            return Ok(());
        };
        for (text, sign) in [(chosen, 1.0f32), (rejected, -1.0)] {
            let example = examples.add();
            example.input_ids.extend(ids(text));
            example.label_all();
            example.field("sign")?.push(sign);
        }
        Ok(())
    })
}

const PAIRS: &[&str] = &["ab|c", "de|fgh", "none", "ij|k", "lmnop|q"];

#[test]
fn pairs_stand_in_adjacent_rows_of_one_micro_batch() {
    let mut loader = loader(PAIRS, pairs(), (3, 4), Cursor::default(), 1).unwrap();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!((batch.rows, batch.starts.len()), (6, 6));
        assert_eq!(
            batch.field("sign"),
            Some(Slice::F32(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]))
        );
        let ends: Vec<_> = batch.extents().collect();
        for (pair, rows) in batch.input_ids.chunks(8).enumerate() {
            let pairs = PAIRS.iter().copied();
            let of_row = pairs.filter(|text| text.starts_with(char::from(rows[0] as u8)));
            let expected = of_row.map(|text| text.split_once('|').unwrap()).next();
            let (chosen, rejected) = expected.unwrap();
            let text: String = rows.iter().map(|&id| char::from(id as u8)).collect();
            let cut = |text: &str| format!("{:\0<4.4}", text);
            assert_eq!(text, cut(chosen) + &cut(rejected));
            seen.push(rows[0]);
            assert_eq!(ends[2 * pair], ends[2 * pair + 1]);
            assert!(ends[2 * pair].0 < ends[2 * pair].1);
        }
        loader.recycle(batch);
    }
    // Six epochs of the four pairs.
    for text in PAIRS.iter().filter(|text| **text != "none") {
        let first = u32::from(text.as_bytes()[0]);
        assert_eq!(seen.iter().filter(|&&id| id == first).count(), 6, "{text}");
    }
}

#[test]
fn several_examples_of_a_row_are_segments_of_their_own_when_packed() {
    let words = |text: &str, examples: &mut Examples| -> Result<(), DataError> {
        for word in text.split(' ') {
            let example = examples.add();
            example.input_ids.extend(ids(word));
            example.label_all();
        }
        Ok(())
    };
    let collator = bytes(Layout::Packed, &[], words);
    let batch = first(&["ab  cde f"], collator, (1, 6));
    assert_eq!(batch.input_ids, ids("abcdef").collect::<Vec<_>>());
    assert_eq!(batch.segment_ids, [1, 1, 2, 2, 2, 3]);
    assert_eq!(batch.position_ids, [0, 1, 0, 1, 2, 0]);
    assert_eq!(
        batch.cursor,
        Cursor {
            epoch: 1,
            row: 0,
            token: 0
        }
    );
}

/// A run that goes on after any batch has the batches of one that was never interrupted.
#[test]
fn fields_pairs_and_draws_are_the_same_after_any_interruption() {
    let drawn = || {
        let fields = [Field::per_token("draw", 0u32)];
        bytes(Layout::Packed, &fields, |text, examples| {
            let seed = examples.seed();
            for word in text.split('|') {
                let example = examples.add();
                example.input_ids.extend(ids(word));
                example.label_none();
                let draws = (0..word.len()).map(|i| (seed >> i) as u32);
                example.field("draw")?.extend(draws);
            }
            Ok(())
        })
    };
    let collators: [fn() -> Arc<dyn Collator>; 2] = [pairs, drawn];
    for collator in collators {
        let open = |cursor, num_workers| loader(PAIRS, collator(), (2, 3), cursor, num_workers);
        let mut whole = open(Cursor::default(), 2).unwrap();
        let mut next = || whole.next_batch().unwrap().unwrap();
        let batches: Vec<Batch> = (0..30).map(|_| next()).collect();
        for cut in 1..20 {
            let mut resumed = open(batches[cut - 1].cursor, 0).unwrap();
            for expected in &batches[cut..cut + 10] {
                let batch = resumed.next_batch().unwrap().unwrap();
                assert_eq!(&batch, expected);
                resumed.recycle(batch);
            }
        }
    }
}

#[test]
fn what_is_drawn_differs_by_epoch_and_by_row() {
    let fields = [Field::per_row("seed", 0i64)];
    let collator = bytes(Layout::Padded, &fields, |text, examples| {
        let seed = examples.seed() as i64;
        let example = examples.add();
        example.input_ids.extend(ids(text));
        example.label_all();
        example.field("seed")?.push(seed);
        Ok(())
    });
    let batch = first(&["ab", "cd", "ef"], collator, (6, 2)); // two epochs
    let Some(Slice::I64(seeds)) = batch.field("seed") else {
        panic!("a field of i64")
    };
    let different: std::collections::HashSet<_> = seeds.iter().collect();
    assert_eq!(different.len(), 6);
}

#[test]
fn labels_in_their_place_are_counted_from_the_first_token_on() {
    let collator: Arc<dyn Collator> = Arc::new(Bytes {
        layout: Layout::Packed,
        prediction: Prediction::SameToken,
        fields: Vec::new(),
        encode: |text: &str, examples: &mut Examples| -> Result<(), DataError> {
            let example = examples.add();
            example.input_ids.extend(ids(text).map(|_| 1));
            example.labels.extend(ids(text).map(i64::from));
            Ok(())
        },
    });
    let batch = first(&["abc"], collator, (1, 5));
    assert_eq!(batch.labels[..3], [97, 98, 99]);
    assert_eq!(batch.num_targets, 5);
    let targets: Vec<_> = batch.targets().collect();
    assert_eq!(targets[..3], [(1, 97), (1, 98), (1, 99)]); // the token before, or the first itself
}

#[test]
fn one_row_is_kept_by_leaving_labels_and_fields_of_the_others_out() {
    let mut batch = first(PAIRS, pairs(), (1, 4));
    batch.keep_row(1);
    assert_eq!(batch.labels[..4], [IGNORE; 4]);
    assert_eq!(batch.field("sign"), Some(Slice::F32(&[0.0, -1.0])));
}

#[test]
fn what_does_not_fit_the_declaration_is_an_error_that_names_collator_row_and_field() {
    let weights = [Field::weights()];
    let pair = Layout::Grouped(2);
    type Encode = fn(&str, &mut Examples) -> Result<(), DataError>;
    let cases: [(Layout, &[Field], Encode, &str); 8] = [
        (
            Layout::Packed,
            &weights,
            |text, examples| {
                let example = examples.add();
                example.input_ids.extend(ids(text));
                example.label_all();
                example.field("weights")?.push(1.0f32);
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `weights`: 1 values for 3 tokens",
        ),
        (
            Layout::Packed,
            &[],
            |text, examples| {
                examples.add().input_ids.extend(ids(text));
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `labels`: 0 values for 3 tokens",
        ),
        (
            Layout::Packed,
            &weights,
            |_, examples| {
                examples.add().field("weigths")?.push(1.0f32);
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `weigths`: not declared; the collator's `fields` are: weights",
        ),
        (
            Layout::Packed,
            &weights,
            |_, examples| {
                examples.add().field("weights")?.push(1i64);
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `weights`: declared as f32, written as i64",
        ),
        (
            pair,
            &[],
            |text, examples| {
                let example = examples.add();
                example.input_ids.extend(ids(text));
                example.label_all();
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `input_ids`: 1 examples, where the layout says 2 or none",
        ),
        (
            pair,
            &[],
            |text, examples| {
                let example = examples.add();
                example.input_ids.extend(ids(text));
                example.label_all();
                examples.add();
                Ok(())
            },
            "collator `Bytes`, words, row 0: field `input_ids`: example 2 of 2 has no tokens",
        ),
        (
            Layout::Packed,
            &[Field::per_row("sign", 0.0f32)],
            |_, _| Ok(()),
            "collator `Bytes`: field `sign`: packed rows hold several examples, so it cannot be per row",
        ),
        (
            Layout::Packed,
            &[Field::per_token("labels", 0i64)],
            |_, _| Ok(()),
            "collator `Bytes`: field `labels`: every batch has it, so it cannot be declared",
        ),
    ];
    for (layout, fields, encode, expected) in cases {
        assert_eq!(error(&["abc"], bytes(layout, fields, encode)), expected);
    }
    let mut twice = vec![Field::per_token("x", 0u32); 2];
    let declared = |fields: &[Field]| error(&["abc"], bytes(Layout::Packed, fields, |_, _| Ok(())));
    assert_eq!(
        declared(&twice),
        "collator `Bytes`: field `x`: declared twice"
    );
    twice[0] = Field::per_token("weights", 0.0f32);
    assert_eq!(
        declared(&twice[..1]),
        "collator `Bytes`: field `weights`: must be `Field::weights()`: f32, one for each target"
    );
}

/// Of a collator that breaks its contract.
#[test]
fn labels_and_tokens_that_cannot_be_are_refused_with_row_and_collator() {
    fn refused(labels: &'static [i64], id: u32) -> String {
        let collator = bytes(Layout::Packed, &[], move |_, examples| {
            let example = examples.add();
            example.input_ids.extend([1, id]);
            example.labels.extend(labels);
            Ok(())
        });
        let order = Order::new(3, Shard::default(), Some(1)).unwrap();
        let shape = BatchShape {
            rows: 1,
            seq_len: 4,
            pad_id: 0,
            vocab_size: 10,
        };
        let (source, start) = (Arc::new(Words(&["a"])), Cursor::default());
        let mut loader = Loader::new(source, order, collator, shape, start, None, 1).unwrap();
        match loader.next_batch() {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }
    let whose = "collator `Bytes`, words, row 0: field";
    assert_eq!(refused(&[1, IGNORE], 9), "");
    assert_eq!(
        refused(&[1], 9),
        format!("{whose} `labels`: 1 values for 2 tokens")
    );
    assert_eq!(
        refused(&[1, 1], 10),
        format!("{whose} `input_ids`: 10 is beyond the vocabulary of 10 tokens")
    );
    for label in [-1, 10] {
        let labels: &[i64] = if label < 0 { &[1, -1] } else { &[1, 10] };
        let message = refused(labels, 9);
        assert!(
            message.starts_with(&format!("{whose} `labels`: {label} is neither -100")),
            "{message}"
        );
    }
}

#[test]
fn an_endless_source_without_a_token_is_given_up_and_a_stop_is_seen_before() {
    struct Endless;
    impl Source for Endless {
        fn num_rows(&self) -> Option<u64> {
            None
        }
        fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
            let source = "endless";
            row.at = Location::Generated { source, index };
            row.text_mut("text");
            Ok(())
        }
    }
    let open = || {
        let collator = bytes(Layout::Packed, &[], |_, _| Ok(()));
        let order = Order::new(3, Shard::default(), None).unwrap();
        let shape = BatchShape {
            rows: 1,
            seq_len: 4,
            pad_id: 0,
            vocab_size: 10,
        };
        let start = Cursor::default();
        Loader::new(Arc::new(Endless), order, collator, shape, start, None, 1).unwrap()
    };
    let error = open().next_batch().unwrap_err().to_string();
    let expected =
        "collator `Bytes` makes no token of 100000 rows one after another, among them endless";
    assert!(error.starts_with(expected), "{error}");
    let mut stopped = open();
    let asked = std::sync::atomic::AtomicU64::new(0);
    stopped.interrupt_if(move || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 10);
    assert!(matches!(stopped.next_batch(), Err(DataError::Interrupted)));
}

#[test]
fn what_is_left_out_is_counted_once_however_many_epochs_there_are() {
    let collator = bytes(Layout::Padded, &[], |text, examples| {
        match text {
            "b" => examples.skip(),
            _ => {
                let example = examples.add();
                example.input_ids.extend(ids(text).take(4));
                example.label_all();
                examples.cut(text.len().saturating_sub(4));
            }
        }
        Ok(())
    });
    let words = &["aa", "b", "cccccc"];
    let mut loader = loader(words, collator, (1, 4), Cursor::default(), 0).unwrap();
    let mut all = tt_collators::LeftOut::default();
    for _ in 0..12 {
        all += loader.next_batch().unwrap().unwrap().left_out;
    }
    assert_eq!((all.rows, all.cut_rows, all.cut_tokens), (1, 1, 2));
}
