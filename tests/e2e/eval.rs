//! A trained model is looked at: its loss over data, and its answers to questions.

use std::collections::HashMap;
use std::fs;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use serde_json::Value;
use tt_data::Tokenizer;
use tt_testkit::{gguf_metadata, gguf_tokenizer, write_gguf};

use crate::harness::{Place, RunFolder, nano};

/// A run of two steps, into `dir`.
#[track_caller]
fn trained(place: &Place, dir: &str, more: &[&str]) -> RunFolder {
    let run_dir = format!("hydra.run.dir={dir}");
    let args = [&["trainer.max_steps=2", &run_dir], more].concat();
    place.run_nano(&args).with_code(0);
    RunFolder(place.path().join(dir))
}

#[track_caller]
fn evaluated(place: &Place, args: &[&str]) -> Value {
    let finished = place.run(&[&["eval", "--json"], args].concat());
    let stdout = finished.with_code(0).stdout;
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn as_f32(number: &Value) -> Option<f32> {
    number.as_f64().map(|x| x as f32)
}

/// The run's last row of validation.
fn last_validation(run: &RunFolder) -> Value {
    let rows = run.rows().into_iter().rev();
    let mut rows = rows.filter(|row| row.get("val_loss").is_some());
    rows.next().expect("a validation")
}

#[test]
fn a_runs_checkpoint_gives_its_validation_loss_to_the_bit() {
    let mixture = [
        "data=mixture",
        "data.dataset.kwargs.sources=[{url: stories, name: a, max_rows: 50, kwargs: {seed: 1}}, \
         {url: stories, name: b, max_rows: 80, kwargs: {seed: 2}}]",
        "precision=bf16",
        "model/adapter=lora",
        "trainer.kwargs.label_smoothing=0.1",
    ];
    for more in [&[][..], &mixture] {
        let place = Place::new();
        let run = trained(&place, "run", more);
        let validation = last_validation(&run);
        for checkpoint in ["run", "run/checkpoints/step-00000002"] {
            let found = evaluated(&place, &[&format!("checkpoint={checkpoint}")]);
            assert_eq!(found["step"], 2);
            let losses = found["losses"].as_array().expect("losses");
            for row in losses {
                let key = match row["source"].as_str() {
                    None => "val_loss".to_owned(),
                    Some(source) => format!("val_loss/{source}"),
                };
                let [ours, runs] = [&row["loss"], &validation[&key]].map(as_f32);
                assert_eq!(ours, runs, "{key}: {found}");
                let loss = row["loss"].as_f64().expect("a loss");
                let (bytes, bits) = (row["text_bytes"].as_f64(), row["bits_per_byte"].as_f64());
                assert!(bits > Some(0.5) && bytes > Some(100.0), "{row}");
                assert!((row["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-2);
            }
            assert_eq!(losses.len(), if more.is_empty() { 1 } else { 3 }, "{found}");
        }
    }
}

/// A model whose logits are all the same: each token takes `log2(vocab_size)` bits.
fn made_uniform(run: &RunFolder) {
    let path = run.final_checkpoint().join("model.safetensors");
    let mut weights: HashMap<String, Tensor> =
        candle_core::safetensors::load(&path, &Device::Cpu).expect("weights");
    let norm = weights.get_mut("model.norm.weight").expect("a norm");
    *norm = norm.zeros_like().expect("zeros");
    candle_core::safetensors::save(&weights, &path).expect("written");
}

#[test]
fn bits_per_byte_compare_tokenizers_over_the_same_text() {
    let place = Place::new();
    let text = "Long ago a bear named Clara had 12 kites. Ünïcode: 🐻 and don't.";
    place.write(
        "text.jsonl",
        &format!("{}\n", serde_json::json!({"text": text})),
    );
    let data = [
        "data=jsonl",
        "data.path=text.jsonl",
        "data.val_path=text.jsonl",
    ];
    for vocab_size in ["300", "1024"] {
        let tokens = format!("data.tokenizer.vocab_size={vocab_size}");
        let run = trained(&place, &format!("run{vocab_size}"), &[&tokens]);
        made_uniform(&run);
        let checkpoint = format!("checkpoint={}", run.final_checkpoint().display());
        let found = evaluated(&place, &[&[&*checkpoint], &data[..]].concat());
        let row = &found["losses"][0];
        let number = |key: &str| row[key].as_f64().expect("a number");

        let tokenizer = Tokenizer::load(&run.final_checkpoint(), None).expect("a tokenizer");
        let ids = tokenizer.encode(text).expect("ids");
        // The first token is predicted by nothing; the end of the text is predicted, and no text.
        let first = tokenizer.decode(&ids[..1]).expect("text").len();
        assert_eq!(number("text_bytes") as usize, text.len() - first);
        assert_eq!(number("text_tokens") as usize, ids.len() - 1);
        assert_eq!(number("targets") as usize, ids.len());
        let bits = vocab_size.parse::<f64>().unwrap().log2();
        assert!((number("loss") - bits * std::f64::consts::LN_2).abs() < 1e-5);
        let expected = bits * number("text_tokens") / number("text_bytes");
        assert!((number("bits_per_byte") - expected).abs() < 1e-5, "{row}");
    }
    // Tokens of another tokenizer mean something else to the model, or are none of its.
    for other in ["run300", "run1024"] {
        let tokenizer = format!("data.tokenizer.path={other}/tokenizer");
        let other = if other == "run300" {
            "run1024"
        } else {
            "run300"
        };
        let checkpoint = format!("checkpoint={other}/checkpoints/step-00000002");
        place
            .run(&[&["eval", &checkpoint, &tokenizer], &data[..]].concat())
            .with_code(2)
            .complains("error: ");
    }
}

#[test]
fn a_run_an_export_and_a_gguf_file_give_the_same_loss() {
    let place = Place::new();
    let run = trained(&place, "run", &[]);
    place
        .run(&["export", "checkpoint=run", "out=exported"])
        .with_code(0);
    let exported = place.path().join("exported");
    let json = |name: &str| -> Value {
        let text = fs::read_to_string(exported.join(name)).expect("a file");
        serde_json::from_str(&text).expect("JSON")
    };
    let weights = candle_core::safetensors::load(exported.join("model.safetensors"), &Device::Cpu);
    let tensors: Vec<_> = weights.expect("weights").into_iter().collect();
    let metadata = [
        gguf_metadata(&json("config.json")),
        gguf_tokenizer(&json("tokenizer.json"), "qwen2"),
    ];
    let gguf = place.path().join("model.gguf");
    write_gguf(&gguf, &metadata.concat(), &tensors, GgmlDType::F32);

    let data = [
        "data=stories",
        "data.sequence_length=32",
        "micro_batch_size=2",
    ];
    let loss = |checkpoint: &str| {
        let checkpoint = format!("checkpoint={checkpoint}");
        let found = evaluated(&place, &[&[&*checkpoint], &data[..]].concat());
        as_f32(&found["losses"][0]["loss"])
    };
    let expected = as_f32(&last_validation(&run)["val_loss"]);
    for checkpoint in ["run", "exported", "model.gguf"] {
        assert_eq!(loss(checkpoint), expected, "{checkpoint}");
    }
    // What has no run around it needs to be told.
    place
        .run(&["eval", "checkpoint=model.gguf"])
        .with_code(2)
        .complains("no run, so nothing says what to evaluate it on: choose data=NAME");
    // And the same file continues a text.
    place
        .run(&["generate", "checkpoint=model.gguf", "--prompt", "Long ago"])
        .with_code(0)
        .prints("Long ago");
}

#[test]
fn splits_and_limits_are_asked_for() {
    let place = Place::new();
    trained(&place, "run", &[]);
    let run = "checkpoint=run";
    let both = evaluated(&place, &[run, "splits=[train,validation]", "max_batches=3"]);
    let rows = both["losses"].as_array().expect("rows");
    let named: Vec<_> = rows.iter().map(|row| row["split"].as_str()).collect();
    assert_eq!(named, [Some("train"), Some("validation")]);
    assert!(rows.iter().all(|row| row["batches"] == 3), "{both}");
    let again = evaluated(&place, &[run, "splits=[train,validation]", "max_batches=3"]);
    assert_eq!(again, both);
    let more = evaluated(&place, &[run, "num_val_blocks=200"]);
    assert_eq!(more["losses"][0]["batches"], 100);
    place
        .run(&["eval", run, "max_batches=2"])
        .with_code(0)
        .prints("split       source    loss  perplexity  bits/byte  targets  bytes\n")
        .prints("lm_trainer.LMTrainer, f32");
    place
        .run(&["eval", run, "splits=[train]"])
        .with_code(2)
        .complains("has no end: say how much of it, with max_batches=100");
    for (wrong, complaint) in [
        (
            "details=absent/d.jsonl",
            "details: cannot write absent/d.jsonl",
        ),
        ("splits=[test]", "validation"),
        ("+max_batch=2", "max_batches"),
        ("data=nothing", "stories"),
        ("max_batches=0", "max_batches"),
        ("checkpoint=nowhere", "nowhere"),
        ("tasks=[nowhere.jsonl]", "nowhere.jsonl"),
    ] {
        place
            .run(&["eval", run, wrong])
            .with_code(2)
            .complains(complaint);
    }
    place.run(&["eval"]).with_code(2).complains("checkpoint");
    place
        .run(&["generate", run, "--json"])
        .with_code(2)
        .complains("`--json` is for");
}

#[test]
fn a_model_without_its_tokenizer_is_refused() {
    let place = Place::new();
    trained(&place, "run", &[]);
    place
        .run(&["export", "checkpoint=run", "out=bare"])
        .with_code(0);
    fs::remove_file(place.path().join("bare/tokenizer.json")).expect("removed");
    place.write("q.jsonl", QUESTION);
    for wanted in [&["data=stories"][..], &["tasks=[q.jsonl]"]] {
        place
            .run(&[&["eval", "checkpoint=bare"], wanted].concat())
            .with_code(2)
            .complains("tokenizer.json");
    }
    place.write("empty/notes.txt", "nothing");
    place
        .run(&["eval", "checkpoint=empty", "data=stories"])
        .with_code(2)
        .complains("empty/config.json");
}

const QUESTION: &str =
    "{\"query\": \"Long ago there was\", \"choices\": [\"a bear\", \"qq zz\"], \"gold\": 0}\n";

#[test]
fn questions_are_answered_and_wrong_ones_refused_by_line() {
    let place = Place::new();
    // Long enough to know a word from none.
    let more = ["trainer.max_steps=40", "lr=4e-3", "hydra.run.dir=run"];
    place.run_nano(&more).with_code(0);
    let swapped = QUESTION
        .replace("[\"a bear\", \"qq zz\"]", "[\"qq zz\", \"a bear\"]")
        .replace("0}", "1}");
    place.write("right.jsonl", &format!("{QUESTION}\n{swapped}"));
    place.write("wrong.jsonl", &QUESTION.replace("0}", "1}"));
    let args = [
        "checkpoint=run",
        "tasks=[right.jsonl,wrong.jsonl]",
        "details=details.jsonl",
    ];
    let found = evaluated(&place, &args);
    assert_eq!(
        found["losses"],
        serde_json::json!([]),
        "only what was asked"
    );
    let tasks = found["tasks"].as_array().expect("tasks");
    assert_eq!(tasks.len(), 2);
    for (task, (name, questions, share)) in tasks.iter().zip([("right", 2, 1.0), ("wrong", 1, 0.0)])
    {
        assert_eq!(
            (&task["task"], &task["questions"]),
            (&name.into(), &questions.into())
        );
        for figure in ["acc", "acc_norm", "acc_bytes"] {
            assert_eq!(task[figure], share, "{task}");
        }
    }
    let details = fs::read_to_string(place.path().join("details.jsonl")).expect("details");
    let details: Vec<Value> = details
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let [first, second] = [0, 1].map(|i| details[i]["log_likelihoods"].as_array().unwrap());
    for (a, b) in first.iter().zip(second.iter().rev()) {
        let difference = a.as_f64().unwrap() - b.as_f64().unwrap();
        assert!(difference.abs() < 1e-5, "a choice's place changes nothing");
    }
    assert_eq!(
        (&details[1]["line"], &details[1]["right"]),
        (&3.into(), &1.into())
    );
    place
        .run(&["eval", "checkpoint=run", "tasks=[right.jsonl]"])
        .with_code(0)
        .prints("task   questions     acc       ±  acc_norm  acc_bytes  truncated\n")
        .prints("right          2  1.0000  0.0000");

    place
        .run(&[
            "eval",
            "checkpoint=run",
            "tasks=[right.jsonl]",
            "prompt='{querry}:'",
        ])
        .with_code(2)
        .complains("right.jsonl:1: prompt=\"{querry}:\": no column `querry`; there are query, choices, gold");

    let long = "a".repeat(2000);
    for (text, complaint) in [
        ("", "has no questions"),
        ("{\"query\": 1}\n", "q.jsonl:1: `query`: 1 is no text"),
        ("\n{nonsense\n", "q.jsonl:2: "),
        (
            &format!("{{\"query\": \"a\", \"choices\": [\"b\", \"{long}\"], \"gold\": 0}}"),
            "and the model reads 512",
        ),
    ] {
        place.write("q.jsonl", text);
        place
            .run(&["eval", "checkpoint=run", "tasks=[q.jsonl]"])
            .with_code(2)
            .complains(complaint);
    }
}

#[test]
fn weights_without_a_loss_are_said_to_be_of_no_use() {
    // By its own name: of a run a checkpoint that has been changed is passed over.
    const CHANGED: &str = "checkpoint=run/checkpoints/step-00000002";
    let place = Place::new();
    let run = trained(&place, "run", &[]);
    let path = run.final_checkpoint().join("model.safetensors");
    let mut weights = candle_core::safetensors::load(&path, &Device::Cpu).expect("weights");
    let norm = weights.get_mut("model.norm.weight").expect("a norm");
    *norm = (norm.ones_like().expect("ones") * f64::NAN).expect("NaN");
    candle_core::safetensors::save(&weights, &path).expect("written");
    place
        .run(&["eval", CHANGED, "--json"])
        .with_code(1)
        .complains("the loss is not finite");
    place.write("q.jsonl", QUESTION);
    place
        .run(&["eval", CHANGED, "tasks=[q.jsonl]"])
        .with_code(1)
        .complains("its weights are of no use");
    place
        .run(&["embed", CHANGED, "--text", "a"])
        .with_code(1)
        .complains("its weights are of no use");
}

/// As for every command whose product it is: whoever reads no further has had enough, and a full disk has lost it.
#[test]
fn a_full_disk_behind_standard_output_is_a_failure_and_a_closed_one_is_none() {
    let place = Place::new();
    trained(&place, "run", &[]);
    let eval = ["eval", "checkpoint=run", "max_batches=1"];
    let batch = ["batch", "data.sequence_length=32"];
    let config = ["--cfg", "job", "+model=qwen2"];
    let again = nano(&["trainer.max_steps=2", "hydra.run.dir=run"]);
    let full = r#"exec "$@" >/dev/full"#;
    for (script, args, code) in [
        (r#"exec "$@" >&-"#, &eval[..], 0),
        (full, &eval, 1),
        (full, &batch, 1),
        (full, &config, 1),
        (full, &["--version"], 1),
        (r#""$@" | head -0; exit ${PIPESTATUS[0]}"#, &batch, 0),
        // A run's is in its folder.
        (full, &again, 0),
    ] {
        let output = place.shell(script, args).output().expect("bash");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{script} {args:?}: {stderr}"
        );
        let is_said = stderr.contains("error: standard output: No space left on device");
        assert_eq!(is_said, code == 1, "{script} {args:?}: {stderr}");
    }
}
