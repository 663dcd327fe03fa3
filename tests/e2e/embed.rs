//! Texts become vectors.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::Place;

const TEXTS: &str = "Long ago there was a bear.\n\nOnce\na much longer line, of many more words than the others have\n";

fn trained() -> Place {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run"])
        .with_code(0);
    place.write("texts.txt", TEXTS);
    place
}

fn vectors(jsonl: &str) -> Vec<Vec<f32>> {
    let rows = jsonl.lines().enumerate().map(|(index, line)| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(row["index"], index);
        serde_json::from_value(row["embedding"].clone()).expect("numbers")
    });
    rows.collect()
}

#[test]
fn lines_objects_flags_and_standard_input_give_the_same_vectors_in_order() {
    let place = trained();
    let embed = |more: &[&str]| {
        let args = [&["embed", "checkpoint=run"], more].concat();
        place.run(&args).with_code(0)
    };
    let said = embed(&["input=texts.txt"]);
    let expected = vectors(&said.stdout);
    assert_eq!(expected.len(), 4);
    assert!(
        said.stderr.contains("1 of 4 texts have no token"),
        "{}",
        said.stderr
    );
    assert!(
        expected[1].iter().all(|x| *x == 0.0),
        "of nothing comes nothing"
    );
    assert_ne!(expected[0], expected[2]);

    let lines = TEXTS.lines();
    let objects = lines.map(|text| format!("{}\n", serde_json::json!({"meta": {"t": text}})));
    place.write("texts.jsonl", &objects.collect::<String>());
    let of_objects = embed(&["input=texts.jsonl", "field=meta.t"]);
    assert_eq!(vectors(&of_objects.stdout), expected);

    let flags: Vec<&str> = TEXTS.lines().flat_map(|text| ["--text", text]).collect();
    assert_eq!(vectors(&embed(&flags).stdout), expected);

    let piped = r#"cat texts.txt | "$@""#;
    let output = place.shell(piped, &["embed", "checkpoint=run"]).output();
    let stdout = String::from_utf8(output.expect("bash").stdout).expect("UTF-8");
    assert_eq!(vectors(&stdout), expected);

    embed(&["input=texts.txt", "out=vectors.jsonl"]).prints("wrote vectors.jsonl: 4 vectors of ");
    let written = fs::read_to_string(place.path().join("vectors.jsonl")).expect("a file");
    assert_eq!(vectors(&written), expected);
    embed(&["input=texts.txt", "out=vectors.npy"]);
    let npy = fs::read(place.path().join("vectors.npy")).expect("a file");
    let numbers: Vec<u8> = expected
        .concat()
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert!(npy.ends_with(&numbers) && npy.len() < numbers.len() + 200);

    // One at a time, by another pooling, cut off.
    for more in [
        ["batch_size=1", "pooling=mean"],
        ["batch_size=3", "pooling=last"],
    ] {
        let other = vectors(&embed(&[&["input=texts.txt"], &more[..]].concat()).stdout);
        let far = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-6);
        let differ = expected.iter().zip(&other).any(|(a, b)| far(a, b));
        assert_eq!(differ, more[1] == "pooling=last", "{more:?}");
    }
    let cut = embed(&["input=texts.txt", "max_length=5"]);
    assert!(
        cut.stderr.contains("texts were cut to 5 tokens"),
        "{}",
        cut.stderr
    );
    assert_ne!(vectors(&cut.stdout)[3], expected[3]);
}

#[test]
fn wrong_requests_are_refused() {
    let place = trained();
    place.write("empty.txt", "");
    place.write("bad.jsonl", "{\"title\": \"a\"}\n");
    place.write("number.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
    place.write("latin.txt", "a");
    fs::write(place.path().join("latin.txt"), b"caf\xe9").expect("written");
    place
        .run(&["export", "checkpoint=run", "out=bare"])
        .with_code(0);
    fs::remove_file(place.path().join("bare/tokenizer.json")).expect("removed");
    for (wrong, complaint) in [
        (&["input=empty.txt"][..], "empty.txt has no texts"),
        (&[], "standard input has no texts"),
        (&["input=absent.txt"], "absent.txt"),
        (&["input=latin.txt"], "latin.txt"),
        (
            &["input=bad.jsonl"],
            "bad.jsonl:1: no key `text`; there are title: field=KEY",
        ),
        (
            &["input=number.jsonl"],
            "number.jsonl:2: `text`: 3 is no text",
        ),
        (
            &["--text", "a", "out=v.bin"],
            "v.bin is neither .npy nor .jsonl",
        ),
        (&["--text", "a", "pooling=max"], "mean"),
        (&["--text", "a", "batch_size=0"], "batch_size"),
        (
            &["--text", "a", "checkpoint=nowhere"],
            "nowhere/config.json",
        ),
        (&["--text", "a", "checkpoint=bare"], "tokenizer.json"),
    ] {
        place
            .run(&[&["embed", "checkpoint=run"], wrong].concat())
            .with_code(2)
            .complains(complaint);
    }
    place
        .run(&["eval", "checkpoint=run", "--text", "a"])
        .with_code(2)
        .complains("`--text` is for `embed`, not for `eval`");
    place
        .run(&["embed", "checkpoint=run", "--text=a", "out=absent/v.npy"])
        .with_code(1)
        .complains("absent/v.npy");
}

/// Vectors on standard output are the result: one that is lost is a failure, one that nobody wants is none.
#[test]
fn a_full_disk_is_a_failure_and_a_reader_that_leaves_is_none() {
    let place = trained();
    let many: String = (0..2000).map(|i| format!("line {i}\n")).collect();
    place.write("many.txt", &many);
    let args = ["embed", "checkpoint=run", "input=many.txt"];
    for (script, code) in [
        (r#"exec "$@" >/dev/full"#, 1),
        (r#""$@" | head -1 >/dev/null; exit ${PIPESTATUS[0]}"#, 0),
    ] {
        let output = place
            .shell(script, &args)
            .stdout(Stdio::null())
            .output()
            .expect("bash");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{script}: {stderr}");
        assert_eq!(stderr.contains("standard output"), code == 1, "{stderr}");
    }
}
