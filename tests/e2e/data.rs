//! Data sets in files, from outside: trained on, looked at, gone on with, and refused where they are damaged.

use std::path::{Path, PathBuf};

use crate::harness::{Place, RunFolder, entries};

fn golden(name: &str) -> String {
    let root = std::env::var_os("TT_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
        PathBuf::from,
    );
    format!("data.path={}", root.join("data").join(name).display())
}

/// Small rows, so that few steps are more than an epoch.
const SMALL: &[&str] = &[
    "data.tokenizer.vocab_size=300",
    "data.sequence_length=32",
    "data.num_val_blocks=2",
    "data.nulls=skip", // one row in eleven
    "trainer.global_batch_size=2",
    "trainer.micro_batch_size=2",
];

/// What reads them, and what it is given: every kind of source, and a mixture of two.
fn sources() -> Vec<(&'static str, Vec<String>)> {
    let of = |kind: &'static str, name: &str| (kind, vec![format!("data={kind}"), golden(name)]);
    let path = |name: &str| golden(name).replace("data.path=", "");
    let mixture = format!(
        "data.dataset.kwargs.sources=[{{url: jsonl, path: \"{}\", weight: 1}}, {{url: parquet, path: \"{}\", weight: 2}}]",
        path("text.jsonl"),
        path("text_zstd.parquet")
    );
    vec![
        of("parquet", "text_zstd.parquet"),
        of("arrow", "hf_saved"),
        of("jsonl", "text.jsonl.gz"),
        of("files", "shards"),
        ("mixture", vec!["data=mixture".to_owned(), mixture]),
    ]
}

/// Three times interrupted after the first epoch, with another number of workers each time: the same as without.
#[test]
fn every_kind_of_source_is_gone_on_with_exactly() {
    for (kind, source) in sources() {
        let place = Place::new();
        let run = |dir: &str, steps: u32, workers: u32| {
            let more = [
                format!("hydra.run.dir={dir}"),
                format!("trainer.max_steps={steps}"),
                format!("data.num_workers={workers}"),
                "trainer/lr_scheduler=constant".to_owned(),
            ];
            let args: Vec<&str> = source.iter().chain(&more).map(String::as_str).collect();
            place.run_nano(&[SMALL, &args].concat()).with_code(0);
            RunFolder(place.path().join(dir))
        };
        let epoch = |run: &RunFolder| {
            let state = run.final_checkpoint().join("trainer_state/state.json");
            let state = std::fs::read_to_string(state).expect("a state");
            let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
            state["cursor"]["epoch"].as_u64().expect("an epoch")
        };
        // So many that the first epoch is over, of one source and of three times as much.
        let first = if kind == "mixture" { 75 } else { 25 };
        let whole = run("whole", first + 10, 1);
        let mut epochs = Vec::new();
        for (steps, workers) in [(first, 0), (first + 2, 2), (first + 5, 1)] {
            epochs.push(epoch(&run("parts", steps, workers)));
        }
        assert!(epochs.iter().all(|&epoch| epoch >= 1), "{kind}: {epochs:?}");
        let parts = run("parts", first + 10, 2);
        // Each part ends with a validation.
        let steps = |run: &RunFolder| {
            let mut rows = run.timeless_rows();
            rows.retain(|row| row.contains("\"grad_norm\""));
            rows
        };
        assert_eq!(steps(&whole).len(), first as usize + 10);
        assert_eq!(steps(&whole), steps(&parts), "{kind}");
    }
}

/// A run that reads its tokens from disk makes the steps of one that does not, of every kind of source, and either goes on
/// from the other's checkpoint.
#[test]
fn a_token_cache_changes_no_step_and_no_resume() {
    for (kind, source) in sources() {
        let place = Place::new();
        let cache = |on: bool| format!("data.token_cache={}", if on { "tokens" } else { "false" });
        let run = |dir: &str, steps: u32, on: bool| {
            let more = [
                format!("hydra.run.dir={dir}"),
                format!("trainer.max_steps={steps}"),
                cache(on),
                "trainer/lr_scheduler=constant".to_owned(),
            ];
            let args: Vec<&str> = source.iter().chain(&more).map(String::as_str).collect();
            let run = place.run_nano(&[SMALL, &args].concat()).with_code(0);
            (run.stdout, RunFolder(place.path().join(dir)))
        };
        run("without", 3, false);
        let (_, without) = run("without", 6, false);
        let (said, _) = run("with", 3, true);
        assert!(said.contains("token cache: "), "{kind}: {said}");
        let (_, with) = run("with", 6, false);
        assert_eq!(with.timeless_rows(), without.timeless_rows(), "{kind}");
        run("other", 3, false);
        let (said, other) = run("other", 6, true);
        assert!(
            said.contains("of which 0 rows were made now"),
            "{kind}: {said}"
        );
        assert_eq!(other.timeless_rows(), without.timeless_rows(), "{kind}");
    }
}

/// The validation loss of a mixture is the mean of its sources', each of which is told.
#[test]
fn each_source_of_a_mixture_has_its_validation_loss() {
    let place = Place::new();
    let path = |name: &str| golden(name).replace("data.path=", "");
    let sources = format!(
        "data.dataset.kwargs.sources=[{{url: stories, max_rows: 100}}, {{url: jsonl, path: \"{}\", name: web}}]",
        path("text.jsonl")
    );
    let more = [
        "data=mixture",
        &sources,
        "trainer.max_steps=2",
        "trainer.eval_interval=1",
    ];
    place.run_nano(&[SMALL, &more].concat()).with_code(0);
    let rows = place.run_folder().rows();
    let validations: Vec<_> = rows
        .iter()
        .filter(|row| row["val_loss"].is_number())
        .collect();
    assert_eq!(validations.len(), 2, "{rows:?}");
    for row in validations {
        let [all, stories, web] = ["val_loss", "val_loss/stories", "val_loss/web"].map(|key| {
            row[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} in {row}"))
        });
        assert!(stories.min(web) <= all && all <= stories.max(web), "{row}");
        assert_ne!(stories, web);
    }
}

/// Killed at any time, two at once, then damaged: what is there in the end is whole, and only what was not is made again.
#[test]
fn tokenize_goes_on_where_it_was_and_makes_damaged_files_anew() {
    let place = Place::new();
    let lines = (0..20_000).map(|i| format!("{{\"text\": \"the kite number {i} is a kite\"}}\n"));
    std::fs::write(place.path().join("kites.jsonl"), lines.collect::<String>()).unwrap();
    let args = [
        "tokenize",
        "data=jsonl",
        "data.path=kites.jsonl",
        "data.tokenizer.vocab_size=300",
        "data.token_cache=tokens",
    ];
    let mut killed = place.start(&args);
    let tokens = place.path().join("tokens");
    let files = || {
        entries(&tokens)
            .iter()
            .flat_map(|it| entries(it))
            .collect::<Vec<_>>()
    };
    killed.wait_until(|| {
        files()
            .iter()
            .any(|it| it.extension().is_some_and(|it| it == "tokens"))
    });
    killed.kill();
    for one in [place.start(&args), place.start(&args)] {
        one.finish().with_code(0);
    }

    let said = place.run(&args).with_code(0).stdout;
    assert!(
        said.contains("19000 rows") && said.contains("of which 0 rows"),
        "{said}"
    );
    let [folder] = &entries(&tokens)[..] else {
        panic!("{:?}", entries(&tokens));
    };
    let file = folder.join("00003.tokens");
    let whole = std::fs::read(&file).unwrap();
    // Cut off, and with a byte of its sizes or sums changed: found when it is opened.
    for damage in [
        &whole[..whole.len() / 2],
        &[&whole[..whole.len() - 1], b"x"].concat(),
    ] {
        std::fs::write(&file, damage).unwrap();
        let said = place.run(&args).with_code(0).stdout;
        assert!(said.contains("of which 256 rows were made now"), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
    // Other data, another tokenizer, another column: another cache.
    std::fs::write(
        place.path().join("kites.jsonl"),
        "{\"text\": \"one\"}\n".repeat(40),
    )
    .unwrap();
    place.run(&args).with_code(0);
    place
        .run(&[&args[..], &["data.tokenizer.vocab_size=257"]].concat())
        .with_code(0);
    assert_eq!(entries(&tokens).len(), 3);
    let refused = place
        .run(&["tokenize", "data.token_cache=tokens"])
        .with_code(2)
        .stderr;
    assert!(refused.contains("`stories` has no end"), "{refused}");
    // None has been out of use for a day; all have for none.
    let prune = |days: &str| {
        let args = ["tokenize", "data.token_cache=tokens", "--prune", days];
        place.run(&args).with_code(0).stdout
    };
    assert!(prune("1").starts_with("0 token caches removed from tokens"));
    assert!(prune("0").contains("3 token caches removed from tokens"));
    assert_eq!(entries(&tokens).len(), 0);
}

/// Steps from a step on, by what is shown of batches; and where the step cannot be known, a refusal before anything is written.
#[test]
fn a_run_begins_with_the_data_of_a_step() {
    let place = Place::new();
    let lines = (0..60).map(|i| format!("{{\"text\": \"the kite number {i} is a kite\"}}\n"));
    std::fs::write(place.path().join("kites.jsonl"), lines.collect::<String>()).unwrap();
    let data = [&SMALL[..3], &["data=jsonl", "data.path=kites.jsonl"]].concat();
    let batches = |more: &[&str]| {
        let shown = place.run(&[&["batch", "--json"], &data[..], more].concat());
        let shown: serde_json::Value = serde_json::from_str(&shown.with_code(0).stdout).unwrap();
        shown.as_array().expect("batches").clone()
    };
    let padded = "data.collator.kwargs.packing=false";
    let all = batches(&[padded, "--count", "3"]);
    let later = batches(&[padded, "data.start_step=2"]);
    assert_eq!(later, all[2..]);

    let refused = place.run_nano(&[&data[..], &["data.start_step=2"]].concat());
    let refused = refused.with_code(2).stderr;
    assert!(refused.contains("data.token_cache=true"), "{refused}");
    assert_eq!(entries(&place.path().join("outputs")).len(), 0);
    let more = [padded, "data.start_step=2", "trainer.max_steps=1"];
    let run = place.run_nano(&[&data[..], &more, &SMALL[4..]].concat());
    run.with_code(0)
        .prints("the data begins at epoch 0, row 4, token 0");
}

#[test]
fn a_batch_is_shown_without_a_model() {
    let place = Place::new();
    let path = golden("text.jsonl");
    let args = [
        "batch",
        "data=jsonl",
        "data.nulls=skip",
        &path,
        SMALL[0],
        SMALL[1],
        "--count",
        "2",
    ];
    let shown = place.run(&args).with_code(0);
    let shown = shown.prints("batch 1: 4 rows of 32 tokens; ");
    assert!(shown.stdout.contains("text.jsonl:"), "{}", shown.stdout);
    // The first token of a document is no target.
    assert!(
        shown.stdout.contains("segment 1 from position 0: ‹"),
        "{}",
        shown.stdout
    );
    let json = place.run(&[&args[..], &["--json"]].concat()).with_code(0);
    let batches: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    let batches = batches.as_array().expect("batches");
    assert_eq!(batches.len(), 2);
    for batch in batches {
        let rows = batch["rows"].as_array().expect("rows");
        let counted = |key: &str, counts: &dyn Fn(i64) -> bool| {
            let values = rows
                .iter()
                .flat_map(|row| row[key].as_array().expect("numbers"));
            values
                .filter(|value| counts(value.as_i64().expect("a number")))
                .count() as u64
        };
        assert_eq!(batch["targets"], counted("labels", &|label| label != -100));
        assert_eq!(
            batch["tokens"],
            counted("segment_ids", &|segment| segment != 0)
        );
        let of_pieces = rows
            .iter()
            .flat_map(|row| row["pieces"].as_array().expect("pieces"));
        let of_pieces: u64 = of_pieces
            .map(|piece| piece["tokens"].as_u64().expect("a count"))
            .sum();
        assert_eq!(batch["tokens"], of_pieces);
    }
    let page = place.run(&[&args[..], &["--html"]].concat()).with_code(0);
    assert!(
        page.stdout.starts_with("<!doctype html>"),
        "{}",
        page.stdout
    );
}

#[test]
fn damaged_files_and_wrong_columns_are_named_with_their_place() {
    let place = Place::new();
    let refused = |args: &[&str]| {
        let run = place.run(&[&["batch", SMALL[0], SMALL[1]], args].concat());
        assert_ne!(run.code, Some(0), "{}", run.stdout);
        run
    };
    let bad = golden("bad_line.jsonl");
    refused(&["data=jsonl", &bad]).complains("bad_line.jsonl:3: not a JSON object");
    let bad = golden("bad_truncated.parquet");
    refused(&["data=parquet", &bad]).complains("bad_truncated.parquet: not to be read as Parquet");
    let bad = golden("bad_truncated.arrow");
    refused(&["data=arrow", &bad]).complains("bad_truncated.arrow: it is cut off");
    let good = golden("text.jsonl");
    refused(&["data=jsonl", &good, "data.collator.kwargs.text_field=body"])
        .complains("no field `body`; the row has: id, text");
    refused(&["data=jsonl", &good, "data.dataset.kwargs.split=test"])
        .complains("no split `test`; there is train");
    refused(&["data=jsonl", &good, "data.dataset.kwargs.split='train[1'"]).complains("is no split");
    let nulls = golden("edge_missing_keys.jsonl");
    refused(&["data=jsonl", &nulls]).complains("edge_missing_keys.jsonl:2: ");
    // The others can be read.
    place
        .run(&[
            "batch",
            "data=jsonl",
            &nulls,
            &nulls.replace("data.path", "data.val_path"),
            "data.nulls=skip",
            SMALL[0],
            "data.sequence_length=4",
        ])
        .with_code(0);
}
