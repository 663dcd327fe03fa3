//! A checkpoint continues a prompt.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::harness::{Place, RunFolder};

/// A run of two steps in `run`.
fn trained() -> Place {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2", "hydra.run.dir=run"])
        .with_code(0);
    place
}

#[test]
fn a_run_folder_or_a_checkpoint_continues_a_prompt() {
    let place = trained();
    let checkpoint = |path: &str| {
        let checkpoint = format!("checkpoint={path}");
        let args = [
            "generate",
            &checkpoint,
            "prompt=Long ago",
            "max_new_tokens=8",
        ];
        place.run(&args).with_code(0).stdout
    };
    let text = checkpoint("run");
    assert!(text.starts_with("Long ago"), "{text}");
    assert!(text.len() > "Long ago\n".len(), "{text}");
    assert_eq!(
        checkpoint("run/checkpoints/step-00000002"),
        text,
        "the same seed"
    );
    // A folder of checkpoints is a name for the newest of them, for whatever takes one.
    assert_eq!(checkpoint("run/checkpoints"), text);
    place
        .run(&["export", "checkpoint=run/checkpoints", "out=exported"])
        .with_code(0);
    assert_eq!(checkpoint("exported"), text);
}

#[test]
fn a_folder_without_a_model_is_refused() {
    let place = Place::new();
    place
        .run(&["generate", "checkpoint=nowhere", "prompt=a"])
        .with_code(2)
        .complains("nowhere/config.json");
}

#[test]
fn a_missing_checkpoint_is_asked_for() {
    let place = Place::new();
    place
        .run(&["generate", "prompt=a"])
        .with_code(2)
        .complains("checkpoint");
}

/// Sets the first element of a tensor of the run's checkpoint.
fn plant(place: &Place, name: &str, value: f32) {
    let path = place
        .path()
        .join("run/checkpoints/step-00000002/model.safetensors");
    let mut weights = candle_core::safetensors::load(&path, &Device::Cpu).expect("weights");
    let tensor = &weights[name];
    let mut values = tensor
        .flatten_all()
        .and_then(|it| it.to_vec1::<f32>())
        .expect("f32");
    values[0] = value;
    let planted = Tensor::from_vec(values, tensor.dims(), &Device::Cpu).expect("a tensor");
    weights.insert(name.to_owned(), planted);
    candle_core::safetensors::save(&weights, &path).expect("written");
}

#[test]
fn weights_that_give_nan_are_said_to_and_not_continued() {
    let place = trained();
    plant(&place, "model.norm.weight", f32::NAN);
    for temperature in ["temperature=0", "temperature=1"] {
        place
            .run(&[
                "generate",
                "checkpoint=run/checkpoints/step-00000002",
                "prompt=Long ago",
                temperature,
            ])
            .with_code(1)
            .complains("its weights are of no use");
    }
}

#[test]
fn an_export_that_would_make_a_weight_infinite_is_refused_by_tensor_and_value() {
    let place = trained();
    plant(&place, "model.norm.weight", 1e5);
    let checkpoint = "checkpoint=run/checkpoints/step-00000002";
    place
        .run(&["export", checkpoint, "out=half", "dtype=f16"])
        .with_code(2)
        .complains("`model.norm.weight` holds 100000, which is infinite as float16");
    assert!(!place.path().join("half").exists());
    place
        .run(&["export", checkpoint, "out=brain", "dtype=bf16"])
        .with_code(0);
    let path: &Path = &place.path().join("brain/model.safetensors");
    let saved: HashMap<_, _> = candle_core::safetensors::load(path, &Device::Cpu).expect("weights");
    assert_eq!(saved["model.norm.weight"].dtype(), DType::BF16);
}

#[test]
fn a_prompt_is_taken_word_for_word() {
    let place = trained();
    let numbers = [
        "--max-new-tokens",
        "4",
        "--temperature=0",
        "--top-p=0.5",
        "--seed=7",
    ];
    let generate = |more: &[&str]| {
        let args = [&["generate", "checkpoint=run"], more, &numbers[..]].concat();
        place.run(&args).with_code(0).stdout
    };
    for prompt in [
        "It's late",
        "12 + 7 =",
        "M\u{fc}ller ging",
        "one, two\nthree",
        "${x}",
        "-5 [a]",
    ] {
        let text = generate(&["--prompt", prompt]);
        assert!(text.starts_with(prompt), "{text}");
        place.write("prompt.txt", &format!("{prompt}\n"));
        assert_eq!(generate(&["--prompt-file=prompt.txt"]), text);
        let piped = r#"printf '%s' "$PROMPT" | "$@""#;
        let args = [&["generate", "checkpoint=run"], &numbers[..]].concat();
        let mut command = place.shell(piped, &args);
        let output = command.env("PROMPT", prompt).output().expect("bash");
        assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    }
    place
        .run(&[
            "generate",
            "checkpoint=run",
            "--prompt",
            "a",
            "--temperature=warm",
        ])
        .with_code(2)
        .complains("`warm` is not a value of `--temperature`: a number");
    place
        .run(&["plan", "--prompt", "a"])
        .with_code(2)
        .complains("`--prompt` is for `generate`, not for `plan`");
}

#[test]
fn the_help_of_a_command_is_its_own() {
    let place = Place::new();
    let help = |args: &[&str]| place.run(args).with_code(0).stdout;
    let generate = help(&["generate", "--help"]);
    assert!(
        generate.contains("usage: tpu-train generate [FLAG | OVERRIDE]..."),
        "{generate}"
    );
    assert!(generate.contains("--prompt TEXT"), "{generate}");
    assert!(
        !generate.contains("--multirun") && !generate.contains("config groups"),
        "{generate}"
    );
    let inspect = help(&["inspect", "-h"]);
    assert!(!inspect.contains("--cfg"), "{inspect}");
    let train = help(&["train", "--help"]);
    assert!(
        train.contains("--multirun") && train.contains("config groups"),
        "{train}"
    );
}

fn read_json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

/// What a base says of its tokens and of generating is in what is trained from it, whole or merged, and generation stops
/// at each of its ends.
#[test]
fn ends_and_settings_of_a_base_are_carried_on() {
    let place = trained();
    place
        .run(&["export", "checkpoint=run", "out=base"])
        .with_code(0);
    let base = place.path().join("base");
    let mut config = read_json(&base.join("config.json"));
    config["bos_token_id"] = json!(3);
    config["eos_token_id"] = json!([9, 5]);
    place.write("base/config.json", &config.to_string());
    // Whatever comes first ends the text.
    let ends: Vec<u32> = (1..1024).collect();
    let generation =
        json!({"eos_token_id": ends, "temperature": 0.6, "top_p": 0.9, "do_sample": true});
    place.write("base/generation_config.json", &generation.to_string());

    let from = ["trainer.max_steps=1", "model.pretrained_url=base"];
    for (name, more) in [("tuned", ""), ("lora", "model/adapter=lora")] {
        let dir = format!("hydra.run.dir={name}");
        let more = [
            &from[..],
            &[&dir],
            if more.is_empty() {
                &[]
            } else {
                std::slice::from_ref(&more)
            },
        ];
        place.run_nano(&more.concat()).with_code(0);
    }
    place
        .run(&["export", "checkpoint=lora", "out=merged", "--merge"])
        .with_code(0);
    let tuned = RunFolder(place.path().join("tuned")).final_checkpoint();
    let lora = RunFolder(place.path().join("lora")).final_checkpoint();
    for folder in [tuned, lora, place.path().join("merged")] {
        let saved = read_json(&folder.join("generation_config.json"));
        // The end of a document that the tokenizer knows is one more.
        let all: Vec<u32> = (1..1024).chain([0]).collect();
        assert_eq!(saved["eos_token_id"], json!(all));
        assert_eq!(
            (&saved["temperature"], &saved["top_p"]),
            (&json!(0.6), &json!(0.9))
        );
        assert_eq!(saved["bos_token_id"], 3);
        // A folder with an adapter is none of a whole model, so the base's is among what is ours.
        let is_adapter = folder.join("adapter_config.json").exists();
        let config = if is_adapter {
            "trainer_state/config.json"
        } else {
            "config.json"
        };
        let config = read_json(&folder.join(config));
        assert_eq!(
            (&config["bos_token_id"], &config["eos_token_id"]),
            (&json!(3), &json!([9, 5]))
        );
        let checkpoint = format!("checkpoint={}", folder.display());
        let run = place.run(&["generate", &checkpoint, "--prompt", "Long ago"]);
        assert_eq!(run.with_code(0).stdout, "Long ago\n");
    }
}

/// As Llama's tokenizers do, this one puts `<s>` before a text.
#[test]
fn documents_and_prompts_begin_as_the_tokenizer_says() {
    let place = Place::new();
    let small = ["trainer.max_steps=1", "data.tokenizer.vocab_size=300"];
    place
        .run_nano(&[&small[..], &["hydra.run.dir=first"]].concat())
        .with_code(0);
    let mut tokenizer = read_json(&place.path().join("first/tokenizer/tokenizer.json"));
    let start = json!({"id": 300, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    tokenizer["added_tokens"]
        .as_array_mut()
        .expect("tokens")
        .push(start);
    let text = |name| json!({"Sequence": {"id": name, "type_id": 0}});
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, text("A")],
        "pair": [text("A"), text("B")],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [300], "tokens": ["<s>"]}},
    });
    place.write("own/tokenizer.json", &tokenizer.to_string());
    let run = |name: &str, more: &[&str]| {
        let dir = format!("hydra.run.dir={name}");
        let common = ["trainer.max_steps=2", "data.tokenizer.path=own", &dir];
        let run = place.run_nano(&[&common[..], more].concat());
        (run.with_code(0).stdout, RunFolder(place.path().join(name)))
    };
    let (said, with) = run("with", &[]);
    assert!(said.contains("each document begins with <s>"), "{said}");
    let (said, without) = run("without", &["+data.tokenizer.add_special_tokens=false"]);
    assert!(!said.contains("<s>"), "{said}");
    assert_ne!(with.timeless_rows(), without.timeless_rows());
    let generate = |more: &[&str]| {
        let args = [
            "generate",
            "checkpoint=with",
            "--prompt",
            "Long ago",
            "--temperature=0",
        ];
        place.run(&[&args[..], more].concat()).with_code(0).stdout
    };
    let text = generate(&[]);
    assert!(
        text.starts_with("Long ago") && !text.contains("<s>"),
        "{text}"
    );
    generate(&["add_special_tokens=false"]);
}

/// There is one way to name a checkpoint: what `generate` takes, training and `diff` take as well.
#[test]
fn a_run_folder_is_weights_to_begin_with() {
    let place = trained();
    for url in ["run", "run/checkpoints", "run/checkpoints/step-00000002"] {
        let url = format!("model.pretrained_url={url}");
        place
            .run_nano(&[
                &url,
                "trainer.max_steps=1",
                "hydra.run.dir=next",
                "resume=none",
            ])
            .with_code(0);
    }
    place
        .run_nano(&["model.pretrained_url=nowhere", "trainer.max_steps=1"])
        .with_code(2)
        .complains("nowhere");
}
