//! What a collator does not look at is not read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::{Map, Value, json};
use tt_collators::{Pipeline, PipelineOptions};
use tt_data::{DataConfig, DataError};

const ROWS: usize = 200;

/// Rows of a `text` and a `page`, which is long and whose bytes in the file are overwritten.
fn write_damaged(path: &Path) {
    let column = |text: fn(usize) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..ROWS).map(text)))
    };
    let text = column(|row| format!("Row {row} is about a goat and {row} kites."));
    let page = column(|row| format!("{row} pages. ").repeat(200));
    let batch = RecordBatch::try_from_iter([("page", page), ("text", text)]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    let written = writer.close().unwrap();
    let (start, length) = written.row_group(0).column(0).byte_range();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = length as usize;
    file.write_all_at(&vec![0xff; length], start).unwrap();
}

/// Rows that are read in an epoch, and the validation.
fn read(path: &Path, kwargs: Value, collator: Value) -> Result<u64, DataError> {
    let object = |value: Value| -> Map<String, Value> { value.as_object().cloned().unwrap() };
    let mut config = DataConfig {
        path: Some(path.display().to_string()),
        sequence_length: 32,
        ..DataConfig::default()
    };
    config.dataset.url = "parquet".to_owned();
    config.dataset.kwargs = object(kwargs);
    config.collator.kwargs = object(collator);
    config.tokenizer.vocab_size = 300;
    let options = PipelineOptions {
        num_epochs: Some(1),
        cache: None,
        ..PipelineOptions::default()
    };
    let data = Pipeline::open(&config, &options)?;
    let mut batches = data.train(None)?;
    let mut end = 0;
    while let Some(batch) = batches.next_batch()? {
        end = ROWS as u64 * batch.cursor.epoch + batch.cursor.row;
    }
    Ok(end)
}

#[test]
fn a_column_that_the_collator_does_not_use_is_not_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    write_damaged(&path);
    assert_eq!(read(&path, json!({}), json!({})).unwrap(), ROWS as u64);
    // Named, it is.
    let named = json!({"columns": ["text", "page"]});
    let error = read(&path, named, json!({})).unwrap_err().to_string();
    assert!(error.contains("rows 0 to 199 cannot be read"), "{error}");
}

#[test]
fn a_column_that_is_not_there_is_named_beside_all_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, "{\"a\": \"x\", \"b\": \"y\", \"c\": 1}\n".repeat(40)).unwrap();
    let mut config = DataConfig {
        path: Some(path.display().to_string()),
        ..DataConfig::default()
    };
    config.dataset.url = "jsonl".to_owned();
    config.collator.r#type = "seq_to_seq.SeqToSeqCollator".to_owned();
    for (input, output) in [("a", "d"), ("d", "e")] {
        let kwargs = json!({"input_field": input, "output_field": output});
        config.collator.kwargs = kwargs.as_object().cloned().unwrap();
        let opened = Pipeline::open(&config, &PipelineOptions::default());
        let error = opened.err().unwrap().to_string();
        assert!(
            error.contains("no field `d`; the row has: a, b, c"),
            "{error}"
        );
    }
}

#[test]
fn a_question_in_a_column_of_parquet_that_is_not_read_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, other: (&str, ArrayRef)| {
        let column = |text: &'static str| -> ArrayRef {
            Arc::new(StringArray::from_iter_values((0..ROWS).map(|_| text)))
        };
        let columns = [
            ("chosen", column("Yes it is")),
            ("rejected", column("No way")),
        ];
        let columns = columns.into_iter().chain([other]);
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let path = folder.path().join(name);
        let mut writer =
            ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    };
    let open = |path: &Path, columns: Value| {
        let mut config = DataConfig {
            path: Some(path.display().to_string()),
            ..DataConfig::default()
        };
        config.dataset.url = "parquet".to_owned();
        config.dataset.kwargs = Map::from_iter([("columns".to_owned(), columns)]);
        config.collator.r#type = "preference.PreferenceCollator".to_owned();
        config.collator.kwargs = Map::new();
        config.tokenizer.vocab_size = 300;
        let options = PipelineOptions {
            cache: None,
            ..PipelineOptions::default()
        };
        Pipeline::open(&config, &options).map(drop)
    };
    let asked: ArrayRef = Arc::new(StringArray::from_iter_values(
        (0..ROWS).map(|i| format!("{i}?")),
    ));
    let path = write("asked.parquet", ("ask", asked));
    let error = open(&path, Value::Null).unwrap_err().to_string();
    assert!(error.contains("columns.prompt=ask"), "{error}");
    // As the message says.
    open(&path, json!(["chosen", "rejected"])).unwrap();
    let scores: ArrayRef = Arc::new(arrow_array::Float64Array::from(vec![0.5; ROWS]));
    open(&write("scored.parquet", ("score", scores)), Value::Null).unwrap();
}
