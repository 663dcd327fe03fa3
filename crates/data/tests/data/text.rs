//! The data set `text`: documents, splits, and what the user is told when something is wrong.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use tt_data::{DataConfig, DataError, Dataset, Row, Source};

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn config(path: &Path) -> DataConfig {
    let mut config = DataConfig::default();
    config.dataset.url = "text".to_owned();
    config.path = Some(path.to_str().unwrap().to_owned());
    with_separator(config, "blank_line")
}

fn with_separator(mut config: DataConfig, separator: &str) -> DataConfig {
    let kwargs = &mut config.dataset.kwargs;
    kwargs.insert("separator".to_owned(), json!(separator));
    config
}

fn error(config: &DataConfig) -> DataError {
    match Dataset::open(config) {
        Ok(_) => panic!("should have failed"),
        Err(error) => error,
    }
}

fn texts(source: &dyn Source) -> Vec<String> {
    let mut row = Row::default();
    (0..source.num_rows().unwrap())
        .map(|index| {
            source.read(index, &mut row).unwrap();
            row.text("text").unwrap().to_owned()
        })
        .collect()
}

/// Both splits together, in order of text.
fn all_texts(config: &DataConfig) -> Vec<String> {
    let dataset = Dataset::open(config).unwrap();
    let mut all = texts(dataset.train.as_ref());
    all.extend(texts(dataset.validation.as_ref()));
    all.sort();
    all
}

#[test]
fn the_fingerprint_is_of_the_documents_and_their_order() {
    let of = |files: &[(&str, &str)]| {
        let folder = folder(files);
        Dataset::open(&config(&folder.path().join("*.txt")))
            .unwrap()
            .fingerprint
    };
    let original = of(&[("a.txt", "One\n\nTwo"), ("b.txt", "Three\n\nFour")]);
    let renamed = of(&[("c.txt", "One\n\n\nTwo\n"), ("d.txt", "Three\n\nFour")]);
    let reordered = of(&[("b.txt", "One\n\nTwo"), ("a.txt", "Three\n\nFour")]);
    let longer = of(&[("a.txt", "One\n\nTwo"), ("b.txt", "Three\n\nFour\n\nFive")]);
    assert_eq!(original, renamed);
    assert_ne!(original, reordered);
    assert_ne!(original, longer);
}

#[test]
fn blank_lines_stand_between_documents() {
    let text = "\u{feff}\n  One\nand more.  \n\n \t\r\n\nTwo,\r\nstill two.\r\n\r\nThree: äöü";
    let folder = folder(&[("a.txt", text)]);
    let config = config(&folder.path().join("a.txt"));
    let expected = ["One\nand more.", "Three: äöü", "Two,\nstill two."];
    assert_eq!(all_texts(&config), expected);
}

#[test]
fn a_file_can_be_a_document() {
    let folder = folder(&[
        ("a.txt", "A\n\nstill A\n"),
        ("b.txt", "B"),
        ("empty.txt", " \n"),
    ]);
    let config = with_separator(config(&folder.path().join("*.txt")), "file");
    assert_eq!(all_texts(&config), ["A\n\nstill A", "B"]);
}

#[test]
fn of_a_book_alone_the_last_lines_are_held_out() {
    let lines: Vec<_> = (1..=100).map(|i| format!("Line {i} äöü.\r\n")).collect();
    let folder = folder(&[("a.txt", &lines.concat()), ("b.txt", "one line")]);
    let mut config = with_separator(config(&folder.path().join("a.txt")), "file");
    config.val_fraction = 0.1;
    let dataset = Dataset::open(&config).unwrap();
    let [train, validation] = [&dataset.train, &dataset.validation].map(|it| texts(it.as_ref()));
    assert_eq!((train.len(), validation.len()), (1, 1));
    let whole = format!("{}\n{}", train[0], validation[0]);
    assert_eq!(whole, lines.concat().replace("\r\n", "\n").trim_end());
    let held_out = validation[0].lines().count();
    assert!((9..=11).contains(&held_out), "{held_out}");
    let mut row = Row::default();
    dataset.validation.read(0, &mut row).unwrap();
    assert!(
        row.at
            .to_string()
            .ends_with(&format!("a.txt:{}", 101 - held_out)),
        "{}",
        row.at
    );

    config.path = Some(folder.path().join("b.txt").to_str().unwrap().to_owned());
    assert!(matches!(error(&config), DataError::NoValidation { .. }));
}

#[test]
fn a_string_can_stand_between_documents() {
    let text = "A\n\nstill A\n<|endoftext|>\nB<|endoftext|>C<|endoftext|><|endoftext|>\n";
    let folder = folder(&[("a.txt", text)]);
    let config = with_separator(config(&folder.path().join("a.txt")), "<|endoftext|>");
    assert_eq!(all_texts(&config), ["A\n\nstill A", "B", "C"]);
}

#[test]
fn a_row_knows_its_file_and_line() {
    let folder = folder(&[("a.txt", "One\n\n\nTwo\nmore\n\nThree\n")]);
    let path = folder.path().join("a.txt");
    let dataset = Dataset::open(&config(&path)).unwrap();
    let mut row = Row::default();
    let mut places = Vec::new();
    for source in [&dataset.train, &dataset.validation] {
        for index in 0..source.num_rows().unwrap() {
            source.read(index, &mut row).unwrap();
            places.push((row.text("text").unwrap().to_owned(), row.at.to_string()));
        }
    }
    places.sort();
    let at = |line| format!("{}:{line}", path.display());
    let expected = [("One", at(1)), ("Three", at(7)), ("Two\nmore", at(4))];
    assert_eq!(places, expected.map(|(text, at)| (text.to_owned(), at)));
}

#[test]
fn the_split_follows_content_not_order_and_keeps_copies_together() {
    let documents: Vec<String> = (0..400).map(|i| format!("Document {}.", i % 200)).collect();
    let forward = documents.join("\n\n");
    let backward = documents
        .iter()
        .rev()
        .cloned()
        .collect::<Vec<_>>()
        .join("\n\n");
    let folder = folder(&[("forward.txt", &forward), ("backward.txt", &backward)]);
    let split = |name: &str| {
        let mut config = config(&folder.path().join(name));
        config.val_fraction = 0.2;
        let dataset = Dataset::open(&config).unwrap();
        let [mut train, mut validation] =
            [dataset.train, dataset.validation].map(|source| texts(source.as_ref()));
        train.sort();
        validation.sort();
        (train, validation)
    };
    let (train, validation) = split("forward.txt");
    assert_eq!(split("backward.txt"), (train.clone(), validation.clone()));
    assert_eq!(train.len() + validation.len(), 400);
    // 40 of 200 are expected, with a standard deviation of 5.7; each comes twice.
    assert!(
        (40..=120).contains(&validation.len()),
        "{}",
        validation.len()
    );
    assert!(validation.iter().all(|text| !train.contains(text)));
}

#[test]
fn a_small_collection_still_has_both_splits() {
    let folder = folder(&[("a.txt", "One\n\nTwo")]);
    for val_fraction in [0.0, 0.05, 1.0] {
        let mut config = config(&folder.path().join("a.txt"));
        config.val_fraction = val_fraction;
        let dataset = Dataset::open(&config).unwrap();
        assert_eq!(dataset.train.num_rows(), Some(1));
        assert_eq!(dataset.validation.num_rows(), Some(1));
    }
}

#[test]
fn validation_can_have_files_of_its_own() {
    let folder = folder(&[("a.txt", "One\n\nTwo"), ("b.txt", "Three")]);
    let mut config = config(&folder.path().join("a.txt"));
    config.val_path = Some(folder.path().join("b.*").to_str().unwrap().to_owned());
    let dataset = Dataset::open(&config).unwrap();
    assert_eq!(texts(dataset.train.as_ref()), ["One", "Two"]);
    assert_eq!(texts(dataset.validation.as_ref()), ["Three"]);
}

#[test]
fn what_is_wrong_with_files_is_said_with_their_names() {
    let folder = folder(&[("empty.txt", "\n \n"), ("one.txt", "Only one.")]);
    let path = |name: &str| folder.path().join(name);
    let shown = |name: &str| path(name).display().to_string();
    for (name, expected) in [
        (
            "nothing.txt",
            format!("`data.path`: no such file: {}", shown("nothing.txt")),
        ),
        (
            "*.md",
            format!("`data.path`: no file matches {}", shown("*.md")),
        ),
        (
            "",
            format!(
                "`data.path`: {0} is a folder; name its files, for example {0}/*.txt",
                shown("")
            ),
        ),
        (
            "empty.txt",
            format!("no data: {} has no documents", shown("empty.txt")),
        ),
        (
            "one.txt",
            format!(
                "{} has one document only, so none is left for validation; set `data.val_path`, \
                 or split it with `data.dataset.kwargs.separator`",
                shown("one.txt")
            ),
        ),
    ] {
        assert_eq!(error(&config(&path(name))).to_string(), expected);
    }
}

#[test]
fn a_byte_that_is_not_utf8_is_named_by_its_offset() {
    let folder = folder(&[]);
    let path = folder.path().join("a.txt");
    fs::write(&path, b"Fine.\n\nNot fine: \xff\n").unwrap();
    let expected = format!("{}: not UTF-8: invalid byte at offset 17", path.display());
    assert_eq!(error(&config(&path)).to_string(), expected);
}

#[test]
fn missing_path_and_wrong_options_name_their_keys() {
    let mut no_path = config(Path::new("x"));
    no_path.path = None;
    assert!(
        error(&no_path)
            .to_string()
            .starts_with("data set `text` needs `data.path`")
    );

    let folder = folder(&[("a.txt", "One\n\nTwo")]);
    let two_lines = with_separator(config(&folder.path().join("a.txt")), "a\nb");
    let message = error(&two_lines).to_string();
    assert!(
        message.starts_with("`data.dataset.kwargs.separator`: "),
        "{message}"
    );

    let mut unknown = config(&folder.path().join("a.txt"));
    unknown
        .dataset
        .kwargs
        .insert("seperator".to_owned(), json!("file"));
    let message = error(&unknown).to_string();
    assert!(
        message.starts_with("`data.dataset.kwargs`: unknown field `seperator`"),
        "{message}"
    );

    let mut unknown = DataConfig::default();
    unknown.dataset.url = "novels".to_owned();
    assert_eq!(
        error(&unknown).to_string(),
        "unknown data set `novels` (data.dataset.url); known: stories, stories_pairs, text, parquet, arrow, jsonl, files, hf, mixture"
    );
}

#[test]
fn a_file_that_changes_under_a_run_is_an_error() {
    let folder = folder(&[("a.txt", "One\n\nTwo")]);
    let path = folder.path().join("a.txt");
    let dataset = Dataset::open(&config(&path)).unwrap();
    fs::write(&path, "O").unwrap();
    let results = [dataset.train, dataset.validation].map(|source| {
        source
            .read(0, &mut Row::default())
            .map_err(|error| error.to_string())
    });
    let expected = format!(
        "{}: changed while in use; start the run again",
        path.display()
    );
    assert!(results.contains(&Err(expected)), "{results:?}");
}
