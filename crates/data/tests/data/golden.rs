//! Files of rows in the encodings that there are: every row as pyarrow reads it. `TT_GOLDEN` names another folder of cases.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tt_data::{DataConfig, DataError, Dataset, DatasetConfig, Fields, Row, Source, Value};

#[derive(Deserialize)]
struct Manifest {
    files: Vec<Case>,
    bad: Vec<Bad>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    rows: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct Bad {
    file: String,
}

fn folder() -> PathBuf {
    let root = std::env::var_os("TT_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"),
        PathBuf::from,
    );
    root.join("data")
}

fn manifest() -> Manifest {
    let bytes = std::fs::read(folder().join("manifest.json")).expect("the manifest of goldens");
    serde_json::from_slice(&bytes).unwrap()
}

/// The data set of all rows of `file`, for training and for validation.
fn open(file: &str) -> Result<Dataset, DataError> {
    let path = folder().join(file);
    let path = path.to_str().unwrap().to_owned();
    Dataset::open(&DataConfig {
        dataset: DatasetConfig {
            url: "files".to_owned(),
            kwargs: serde_json::Map::new(),
        },
        val_path: Some(path.clone()),
        path: Some(path),
        ..DataConfig::default()
    })
}

fn rows(source: &dyn Source) -> Result<Vec<Row>, DataError> {
    let mut row = Row::default();
    let rows = 0..source.num_rows().unwrap();
    rows.map(|index| {
        source.read(index, &mut row)?;
        Ok(row.clone())
    })
    .collect()
}

/// As the manifest's `hash` says: keys sorted, no blanks.
fn canonical(value: &Value, out: &mut String) {
    let list = |items: &mut dyn Iterator<Item = Value>, out: &mut String| {
        out.push('[');
        for (i, item) in items.enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            canonical(&item, out);
        }
        out.push(']');
    };
    let written = match value {
        Value::Null => write!(out, "null"),
        Value::Bool(value) => write!(out, "{value}"),
        Value::Int(value) => write!(out, "{value}"),
        Value::Float(value) => write!(out, "{}", json!(value)),
        Value::Text(text) => write!(out, "{}", json!(text)),
        Value::Ints(ints) => return list(&mut ints.iter().copied().map(Value::Int), out),
        Value::List(items) => return list(&mut items.iter().cloned(), out),
        Value::Struct(fields) => return canonical_fields(fields, out),
        Value::Other(what) => panic!("not read: {what}"),
    };
    written.unwrap();
}

fn canonical_fields(fields: &Fields, out: &mut String) {
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    out.push('{');
    for (i, (name, value)) in sorted.into_iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        write!(out, "{}:", json!(name)).unwrap();
        canonical(value, out);
    }
    out.push('}');
}

#[test]
fn golden_data_of_every_kind_reads_to_the_right_rows() {
    let mut num_empty = 0;
    for case in manifest().files {
        let file = &case.file;
        if case.rows == 0 {
            let error = open(file).err().expect(file).to_string();
            assert!(error.contains("has no rows"), "{file}: {error}");
            num_empty += 1;
            continue;
        }
        // A folder that is one split of a saved pair is opened by itself.
        let dataset = open(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let rows = rows(dataset.train.as_ref()).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(rows.len() as u64, case.rows, "{file}");
        let mut text = String::new();
        for row in &rows {
            canonical_fields(&row.fields, &mut text);
            text.push('\n');
        }
        let hash = Sha256::digest(text.as_bytes());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, case.sha256, "{file}");
    }
    assert_eq!(num_empty, 3);
}

#[test]
fn golden_data_that_is_damaged_is_refused_with_its_reason() {
    for Bad { file } in manifest().bad {
        let error = match open(&file) {
            Err(error) => error,
            Ok(dataset) => rows(dataset.train.as_ref()).expect_err(&file),
        };
        let error = error.to_string();
        let reason = match file.as_str() {
            "bad_line.jsonl" => "bad_line.jsonl:3: not a JSON object",
            "bad_truncated.parquet" => "not to be read as Parquet",
            "bad_truncated.arrow" | "bad_truncated.jsonl.gz" => "is cut off",
            other => panic!("no reason is known for {other}"),
        };
        assert!(error.contains(&file) && error.contains(reason), "{file}: {error}");
    }
}
