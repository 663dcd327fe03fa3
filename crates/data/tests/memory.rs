//! What reading large files takes, in a process of its own. Linux says it, and lets the peak be forgotten.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use tt_data::{DataConfig, Dataset, DatasetConfig, Order, Row, Shard};

/// One test at a time: the peak is the process's.
static PEAK: Mutex<()> = Mutex::new(());

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
}

fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    1024 * kib.expect("a figure").parse::<u64>().expect("a number")
}

fn open(url: &str, path: &Path) -> Dataset {
    let config = DataConfig {
        dataset: DatasetConfig {
            url: url.to_owned(),
            kwargs: serde_json::Map::new(),
        },
        path: Some(path.to_str().expect("UTF-8").to_owned()),
        ..DataConfig::default()
    };
    Dataset::open(&config).expect("a data set")
}

const ROWS: u64 = 200_000;
const BYTES: usize = 5_120;
/// Names the file to be written, in the process that does: what writing takes would hide what reading does.
const WRITE: &str = "TT_WRITE_LARGE_FILE";

/// A gigabyte of text in one row group.
fn write_large(path: &Path) {
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None) // of pages, which would bring the index
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true) // as most files have none
        .set_max_row_group_row_count(Some(ROWS as usize))
        .build();
    let column = |texts: Vec<String>| {
        let texts = Arc::new(StringArray::from(texts));
        RecordBatch::try_from_iter([("text", texts as _)]).expect("a batch")
    };
    let schema = column(Vec::new()).schema();
    let file = File::create(path).expect("a file");
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).expect("a writer");
    for start in (0..ROWS).step_by(1000) {
        let text = |row: u64| format!("{row:08} ").repeat(BYTES / 9 + 1);
        let texts = (start..start + 1000).map(text).collect();
        writer.write(&column(texts)).expect("written");
    }
    let written = writer.close().expect("closed");
    assert_eq!(written.num_row_groups(), 1);
}

/// Each row of it is read once, in order: in a fraction of it.
#[test]
#[ignore = "writes a gigabyte"]
fn a_row_group_of_a_gigabyte_is_read_in_400_mb() {
    if let Some(path) = std::env::var_os(WRITE) {
        return write_large(path.as_ref());
    }
    let _alone = PEAK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.parquet");
    let test = "a_row_group_of_a_gigabyte_is_read_in_400_mb";
    let written = Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--include-ignored"])
        .env(WRITE, &path)
        .status();
    assert!(written.expect("it starts").success());

    forget_peak();
    let dataset = open("parquet", &path);
    let order = Order::of(3, Shard::default(), dataset.train.as_ref()).expect("an order");
    assert!(order.is_windowed());
    let (mut row, mut bytes, mut seen) = (Row::default(), 0, vec![false; ROWS as usize]);
    for position in 0..order.rows_per_epoch() {
        let index = order.row(0, position);
        dataset.train.read(index, &mut row).expect("a row");
        let text = row.text("text").expect("text");
        bytes += text.len();
        let number: usize = text[..8].parse().expect("its number");
        assert!(
            !std::mem::replace(&mut seen[number], true),
            "{number} twice"
        );
    }
    // One row in twenty is for validation.
    assert!(bytes > 900 << 20, "{bytes}");
    let peak = peak_bytes();
    println!("peak: {} MB", peak >> 20);
    assert!(peak < 400 << 20, "{} MB", peak >> 20);
}

/// A line of 70 MB is read whole, and nothing else is.
#[test]
fn a_line_of_70_mb_is_read_in_600_mb() {
    let _alone = PEAK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.jsonl");
    let mut file = BufWriter::new(File::create(&path).expect("a file"));
    for _ in 0..2 {
        writeln!(file, "{{\"text\": \"short\"}}").expect("written");
    }
    file.write_all(b"{\"text\": \"").expect("written");
    for _ in 0..70 << 10 {
        file.write_all(&[b'x'; 1024]).expect("written");
    }
    file.write_all(b"\"}\n").expect("written");
    drop(file);

    forget_peak();
    let dataset = open("jsonl", &path);
    let mut row = Row::default();
    let mut longest = 0;
    for split in [&dataset.train, &dataset.validation] {
        for index in 0..split.num_rows().expect("an end") {
            split.read(index, &mut row).expect("a row");
            longest = longest.max(row.text("text").expect("text").len());
        }
    }
    assert_eq!(longest, 70 << 20);
    let peak = peak_bytes();
    assert!(peak < 600 << 20, "{} MB", peak >> 20);
}
