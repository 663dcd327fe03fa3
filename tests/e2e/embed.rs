//! Texts become vectors.

use std::collections::HashMap;
use std::fs;
use std::process::Stdio;

use candle_core::{DType, Device, Tensor};
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
    place.write("words.jsonl", "\"a\"\n");
    place.write(
        "odd/config.json",
        r#"{"architectures": ["BertModel"], "hidden_size": 8}"#,
    );
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
        (&["input=words.jsonl"], "words.jsonl:1: \"a\" is no object"),
        (
            &["--text", "a", "input=latin.txt"],
            "given twice: by --text and by input=latin.txt",
        ),
        // Before the work.
        (
            &["--text", "a", "out=absent/v.npy", "checkpoint=nowhere"],
            "out: cannot write absent/v.npy",
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
        // The file is named once.
        (
            &["--text", "a", "checkpoint=odd"],
            "error: odd/config.json: `vocab_size` is missing",
        ),
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
}

/// A checkpoint of the model without its head, as Hugging Face's `BertModel` and `Qwen2Model` write it: names without the
/// prefix, and what else such files have.
fn headless(place: &Place, whole: &str, out: &str, prefix: &str) {
    let [whole, out] = [whole, out].map(|folder| place.path().join(folder));
    fs::create_dir(&out).expect("a folder");
    fs::copy(whole.join("tokenizer.json"), out.join("tokenizer.json")).expect("a tokenizer");
    let config = fs::read_to_string(whole.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    let class = config["architectures"][0].as_str().expect("a class");
    let (family, _) = class.split_once("For").expect("a task");
    config["architectures"][0] = format!("{family}Model").into();
    fs::write(out.join("config.json"), config.to_string()).expect("written");
    let weights = candle_core::safetensors::load(whole.join("model.safetensors"), &Device::Cpu);
    let body = weights.expect("weights").into_iter();
    let mut body: HashMap<String, Tensor> = body
        .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value)))
        .collect();
    let pooler = Tensor::zeros((8, 8), DType::F32, &Device::Cpu).expect("zeros");
    if prefix == "bert." {
        body.insert("pooler.dense.weight".to_owned(), pooler);
    }
    candle_core::safetensors::save(&body, out.join("model.safetensors")).expect("written");
}

#[test]
fn a_model_without_its_head_gives_the_same_vectors_and_is_trained_with_a_new_one() {
    const BERT: &[&str] = &[
        "+model=bert",
        "+trainer=masked_lm",
        "data.sequence_length=32",
        "trainer.global_batch_size=4",
        "trainer.micro_batch_size=2",
        "trainer.max_steps=2",
    ];
    let place = Place::new();
    let small = ["model/size=bert-nano", "hydra.run.dir=bert-run"];
    place.run(&[BERT, &small].concat()).with_code(0);
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=qwen2-run"])
        .with_code(0);
    let embed = |checkpoint: &str, more: &[&str]| {
        let checkpoint = format!("checkpoint={checkpoint}");
        let args = ["embed", &checkpoint, "--text", "Long ago there was a bear."];
        place.run(&[&args, more].concat())
    };
    for (name, prefix) in [("bert", "bert."), ("qwen2", "model.")] {
        let (whole, body) = (format!("{name}-whole"), format!("{name}-body"));
        let (run, out) = (format!("checkpoint={name}-run"), format!("out={whole}"));
        place.run(&["export", &run, &out]).with_code(0);
        headless(&place, &whole, &body, prefix);
        let [expected, own] = [&whole, &body].map(|it| embed(it, &[]).with_code(0).stdout);
        assert_eq!(vectors(&own), vectors(&expected), "{name}");
    }

    // What the model was trained for is beside it.
    let by_default = embed("bert-body", &[]).with_code(0).stdout;
    for (switched, pooling) in [
        ("cls_token", "cls"),
        ("lasttoken", "last"),
        ("mean_tokens", "mean"),
    ] {
        let modes = serde_json::json!({
            "word_embedding_dimension": 8,
            "pooling_mode_mean_tokens": false,
            "pooling_mode_max_tokens": false,
            (format!("pooling_mode_{switched}")): true,
        });
        place.write("bert-body/1_Pooling/config.json", &modes.to_string());
        let followed = embed("bert-body", &[]).with_code(0).stdout;
        let chosen = embed("bert-body", &[&format!("pooling={pooling}")]);
        assert_eq!(followed, chosen.with_code(0).stdout, "{switched}");
        assert_eq!(followed == by_default, pooling == "mean");
    }
    place.write(
        "bert-body/1_Pooling/config.json",
        r#"{"pooling_mode": "cls"}"#,
    );
    let followed = embed("bert-body", &[]).with_code(0).stdout;
    let chosen = embed("bert-body", &["pooling=cls"]).with_code(0).stdout;
    assert_eq!(followed, chosen, "newer files name it");
    let modes = r#"{"pooling_mode_cls_token": false, "pooling_mode_max_tokens": true}"#;
    place.write("bert-body/1_Pooling/config.json", modes);
    embed("bert-body", &[])
        .with_code(2)
        .complains("1_Pooling/config.json: the model was trained with the pooling max_tokens");

    // A part of a head is no model without one.
    let path = place.path().join("bert-whole/model.safetensors");
    let mut weights = candle_core::safetensors::load(&path, &Device::Cpu).expect("weights");
    weights.remove("cls.predictions.bias").expect("it is there");
    candle_core::safetensors::save(&weights, &path).expect("written");
    embed("bert-whole", &[])
        .with_code(2)
        .complains("cls.predictions.bias");

    // A token is predicted by nothing that was there.
    let body = "checkpoint=bert-body";
    for other in [
        &["eval", body, "data=stories", "trainer=masked_lm"][..],
        &["generate", body, "--prompt", "a"],
        &[
            BERT,
            &[
                "model.pretrained_url=bert-body",
                "model/adapter=lora",
                "model.adapter.target_modules=[query,value]",
            ],
        ]
        .concat(),
    ] {
        place
            .run(other)
            .with_code(2)
            .complains("bert-body is of a model without its head");
    }
    let from = ["model.pretrained_url=bert-body", "hydra.run.dir=further"];
    place
        .run(&[BERT, &from].concat())
        .with_code(0)
        .prints("bert-body is of a model without its head: the head is new, drawn from the seed")
        .prints("not read from bert-body: pooler.dense.weight");
    place
        .run(&[BERT, &from, &["trainer.max_steps=3"]].concat())
        .with_code(0);
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
