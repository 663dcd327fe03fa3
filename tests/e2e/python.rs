//! Python's `transformers` and `peft` load what we write and compute what we compute.
//!
//! The interpreter is `$TT_PYTHON`, else `python3`. Without the packages of `tests/python/requirements.txt` the test says
//! so and passes; with `CI` set it fails.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use tt_adapters::{Lora, Saved};
use tt_checkpoint::{SavedAdapter, Weights};
use tt_data::Tokenizer;
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Input, Model, TABLE};
use tt_nn::{Forward, ParamSpec, ParamTree};
use tt_tensor::{Device, Seed, Tensor};

use crate::harness::{NANO, Place, RunFolder};

/// A sentence as the training data has it, and what a tokenizer may stumble over.
const TEXT: &str =
    "A little bear named Clara said: \"12 + 7 = 19!\"\n  Ünïcode, cafe\u{301}, emoji 🐻 and don't.";

/// Names the packages that are missing. Finding a package is quick; importing torch is not.
const FIND_PACKAGES: &str = "
import importlib.util, sys
needed = ['numpy', 'peft', 'safetensors', 'torch', 'transformers']
missing = [name for name in needed if importlib.util.find_spec(name) is None]
sys.exit('no ' + ', '.join(missing) if missing else 0)
";

/// What must load: each with what a `config.json` can say of it beside sizes.
const MODELS: [&[&str]; 8] = [
    &["+model=gpt2"],
    &[
        "+model=gpt2",
        "model.intermediate_size=null",
        "model.activation_function=gelu",
        "model.scale_attn_weights=false",
        "model.scale_attn_by_inverse_layer_idx=true",
        "model.tie_word_embeddings=false",
        "model.attn_pdrop=0.1", // of training alone
    ],
    &["+model=qwen2"],
    &[
        "+model=qwen2",
        "model.use_sliding_window=true",
        "model.sliding_window=8",
        "model.max_window_layers=1",
    ],
    &["+model=qwen3", "model.head_dim=24"],
    &[
        "+model=llama",
        "model.rope_scaling={rope_type:linear,factor:4.0}",
        "model.tie_word_embeddings=false",
    ],
    &[
        "+model=llama",
        "model.rope_scaling={rope_type:llama3,factor:8.0,low_freq_factor:1.0,high_freq_factor:4.0,\
         original_max_position_embeddings:32}",
        "model.attention_bias=true",
        "model.mlp_bias=true",
    ],
    &["+model=bert", "model/size=bert-nano", "+trainer=masked_lm"],
];

#[test]
fn transformers_computes_our_logits_from_our_checkpoints() {
    let Some(python) = python() else {
        return;
    };
    let place = Place::new();
    let mut pairs = Vec::new();
    for (i, model) in MODELS.iter().enumerate() {
        let dir = format!("hydra.run.dir=run{i}");
        let key = |arg: &str| arg.split('=').next().map(str::to_owned);
        let nano = NANO
            .iter()
            .filter(|arg| model.iter().all(|own| key(own) != key(arg)));
        let args: Vec<_> = nano.chain(*model).copied().collect();
        let more = ["trainer.max_steps=30", "lr=4e-3", &dir];
        place.run(&[&args[..], &more].concat()).with_code(0);
        let run = RunFolder(place.path().join(format!("run{i}")));
        let ours = place.path().join(format!("ours{i}.safetensors"));
        pairs.push((run.final_checkpoint(), ours));
    }
    let tokenizer = |at: usize| Tokenizer::load(&pairs[at].0, None).expect("our tokenizer");
    let mut continuations = Vec::new();
    for (at, (checkpoint, ours)) in pairs.iter().enumerate() {
        let (model, params) = whole_model(checkpoint);
        let ids = tokenizer(at).encode(TEXT).expect("ids");
        write_logits(&*model, &params, &ids, ours);
        let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
        let limits = Limits {
            max_new_tokens: 16,
            ends: Vec::new(),
        };
        let mut follow = || generate(&*model, &params, &ids, &mut sampler, &limits);
        continuations.push(match model.is_causal() {
            true => follow().expect("tokens"),
            false => Vec::new(),
        });
    }

    let files = pairs
        .iter()
        .flat_map(|(checkpoint, ours)| [checkpoint, ours]);
    let stdout = run_script(&python, "compare_logits.py", files);
    let results: Vec<Value> = serde_json::from_slice(&stdout).expect("JSON");

    assert_eq!(results.len(), MODELS.len());
    for (at, ((model, result), ours)) in MODELS.iter().zip(results).zip(continuations).enumerate() {
        let tokenizer = tokenizer(at);
        let ids = tokenizer.encode(TEXT).expect("ids");
        let theirs = result["greedy"].as_array().expect("tokens");
        let theirs: Vec<_> = theirs.iter().filter_map(Value::as_u64).collect();
        let ours: Vec<_> = ours.into_iter().map(u64::from).collect();
        assert_eq!(ours[..theirs.len()], theirs, "{model:?}");
        let is_whole =
            theirs.len() == ours.len() || theirs.last() == Some(&tokenizer.eos_id().into());
        assert!(is_whole, "{model:?}: {theirs:?}");
        let is_causal = !model.contains(&"+model=bert");
        assert_eq!(!theirs.is_empty(), is_causal, "{model:?}");
        let difference = result["max_abs_difference"].as_f64().expect("a number");
        assert!(difference < 1e-4, "{model:?}: {result}");
        assert!(
            result["largest_logit"].as_f64() > Some(1.0),
            "{model:?} learned something: {result}"
        );
        assert_eq!(result["ids"], serde_json::json!(ids));
        assert_eq!(result["text"], TEXT.replace("e\u{301}", "\u{e9}"));
        assert_eq!(result["eos_token_id"], tokenizer.eos_id());
        let mask = result["mask_token_id"].as_u64();
        assert_eq!(mask, tokenizer.mask_id().map(u64::from), "{model:?}");
    }

    // And back: what transformers writes of a GPT-2 trains here as what we wrote of it.
    let theirs = place.path().join("theirs");
    run_script(
        &python,
        "compare_logits.py",
        [Path::new("save"), &pairs[0].0, &theirs],
    );
    let trained = |from: &Path, dir: &str| {
        let (url, dir) = (
            format!("model.pretrained_url={}", from.display()),
            format!("hydra.run.dir={dir}"),
        );
        let nano = NANO.iter().filter(|arg| !arg.starts_with("+model="));
        let args: Vec<_> = nano.copied().collect();
        let more = ["+model=gpt2", "trainer.max_steps=2", &url, &dir];
        place.run(&[&args[..], &more].concat()).with_code(0);
        RunFolder(
            place
                .path()
                .join(dir.split('=').next_back().expect("a folder")),
        )
        .timeless_rows()
    };
    let from_theirs = trained(&theirs, "from-theirs");
    assert!(from_theirs.len() > 1);
    assert_eq!(from_theirs, trained(&pairs[0].0, "from-ours"));
}

/// A small `BertForMaskedLM` and its tokenizer, as transformers saves them.
fn make_bert(python: &Path, folder: &Path) {
    let vocab = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/vocab_txt/uncased/vocab.txt"
    );
    let make = [Path::new("make-bert"), Path::new(vocab), folder];
    run_script(python, "compare_logits.py", make);
}

/// And back: what `BertForMaskedLM` and its tokenizer have saved is trained here, and what comes of it is loaded there.
#[test]
fn a_bert_of_transformers_is_trained_here_and_loaded_there() {
    let Some(python) = python() else {
        return;
    };
    let place = Place::new();
    let path = |name: &str| place.path().join(name);
    make_bert(&python, &path("theirs"));
    place
        .run(&[
            "+model=bert",
            "+trainer=masked_lm",
            "model.pretrained_url=theirs",
            "model.hidden_dropout_prob=0.1",
            "data.sequence_length=32",
            "trainer.max_steps=5",
            "hydra.run.dir=run",
        ])
        .with_code(0);
    let trained = RunFolder(path("run")).final_checkpoint();
    let ids = Tokenizer::load(&path("theirs"), None).expect("their tokenizer");
    let ids = ids.encode(TEXT).expect("ids");
    let mut files = Vec::new();
    for checkpoint in [path("theirs"), trained] {
        let ours = path(&format!("ours{}.safetensors", files.len()));
        let (model, params) = whole_model(&checkpoint);
        write_logits(&*model, &params, &ids, &ours);
        files.extend([checkpoint, ours]);
    }
    let stdout = run_script(&python, "compare_logits.py", &files);
    let results: Vec<Value> = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(results.len(), 2);
    for result in results {
        let difference = result["max_abs_difference"].as_f64().expect("a number");
        assert!(difference < 1e-4, "{result}");
        // With [CLS] and [SEP] around them.
        let theirs = result["ids"].as_array().expect("ids");
        assert_eq!(
            theirs[1..theirs.len() - 1],
            *serde_json::json!(ids).as_array().unwrap()
        );
        assert_eq!(result["mask_token_id"], 4);
    }
}

/// Adapters of ours: model and options.
const ADAPTERS: [(&str, &[&str]); 4] = [
    ("qwen2", &["model.adapter.target_modules=[q_proj,v_proj]"]),
    (
        "qwen2",
        &["model.adapter.use_rslora=true", "model.adapter.bias=all"],
    ),
    (
        "qwen2",
        &[
            "model.adapter.target_modules=layers.1.**",
            "model.adapter.lora_alpha=3.5",
            "model.adapter.bias=lora_only",
        ],
    ),
    // Weights that are `[in, out]`.
    ("gpt2", &["model.adapter.bias=lora_only"]),
];

#[test]
fn peft_and_transformers_compute_our_logits_from_our_adapters() {
    let Some(python) = python() else {
        return;
    };
    let place = Place::new();
    let path = |name: &str| place.path().join(name);
    let run = |model: &str, more: &[&str]| {
        let (model, nano) = (format!("+model={model}"), NANO.iter());
        let nano = nano.filter(|arg| !arg.starts_with("+model=")).copied();
        let args: Vec<_> = nano.chain([&*model]).chain(more.iter().copied()).collect();
        place.run(&args).with_code(0);
    };
    let export = |checkpoint: &str, out: &str, merge: bool| {
        let [checkpoint, out] = [format!("checkpoint={checkpoint}"), format!("out={out}")];
        let merge = format!("merge={merge}");
        place
            .run(&["export", &checkpoint, &out, &merge])
            .with_code(0);
    };
    // Of each base an adapter that peft made, then those of ours.
    let mut adapters = Vec::new();
    for (base, targets) in [("qwen2", Some(r".*\.(q_proj|up_proj)")), ("gpt2", None)] {
        let full = format!("{base}-run");
        let dir = format!("hydra.run.dir={full}");
        run(base, &["trainer.max_steps=30", "lr=4e-3", &dir]);
        export(&full, base, false);
        let name = format!("{base}-theirs");
        let make = [PathBuf::from("make"), path(base), path(&name)].into_iter();
        let make = make.chain(targets.map(PathBuf::from));
        run_script(&python, "compare_adapter.py", make);
        adapters.push((base, name));
    }
    for (i, &(base, options)) in ADAPTERS.iter().enumerate() {
        let [dir, url] = [
            format!("hydra.run.dir=run{i}"),
            format!("model.pretrained_url={base}"),
        ];
        let more = [
            &url,
            "model/adapter=lora",
            "trainer.max_steps=20",
            "lr=2e-2",
            &dir,
        ];
        run(base, &[&more[..], options].concat());
        export(&format!("run{i}"), &format!("adapter{i}"), false);
        adapters.push((base, format!("adapter{i}")));
    }
    let ids = Tokenizer::load(&path("qwen2"), None).expect("our tokenizer");
    let ids = ids.encode(TEXT).expect("ids");
    let mut files = Vec::new();
    for (base, name) in &adapters {
        let (merged, ours) = (format!("{name}-merged"), format!("{name}.safetensors"));
        export(name, &merged, true);
        let (model, params) = with_adapter(&path(base), &path(name));
        write_logits(&*model, &params, &ids, &path(&ours));
        files.extend([path(name), path(&merged), path(&ours)]);
    }
    let stdout = run_script(&python, "compare_adapter.py", &files);
    let results: Vec<Value> = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(results.len(), adapters.len());
    for ((_, name), result) in adapters.iter().zip(results) {
        let difference = |of: &str| result[of].as_f64().expect("a number");
        for of in ["adapter", "by_transformers", "merged", "merged_by_peft"] {
            assert!(difference(of) < 1e-4, "{name}: {result}");
        }
        assert!(
            difference("base") > 0.1,
            "{name} changes the base: {result}"
        );
    }
}

#[test]
fn transformers_gives_our_losses_scores_and_vectors() {
    let Some(python) = python() else {
        return;
    };
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=30", "lr=4e-3", "hydra.run.dir=run"])
        .with_code(0);
    let lines = |rows: &[Value]| {
        rows.iter()
            .map(|row| format!("{row}\n"))
            .collect::<String>()
    };
    let documents = [
        TEXT,
        "Long ago there was a bear.",
        "Ünïcode 🐻 and 12 + 7 = 19.",
    ];
    let documents = documents.map(|text| serde_json::json!({"text": text}));
    let documents = place.write("documents.jsonl", &lines(&documents));
    let questions = [
        serde_json::json!({"query": "Long ago there was", "choices": ["a bear", "the 12 of it", "🐻"], "gold": 0}),
        serde_json::json!({"query": "Clara said: ", "choices": ["no", "\"12 + 7 = 19!\""], "gold": 1}),
    ];
    let questions = place.write("questions.jsonl", &lines(&questions));
    let evaluated = place.run(&[
        "eval",
        "--json",
        "checkpoint=run",
        "data=jsonl",
        "data.path=documents.jsonl",
        "data.val_path=documents.jsonl",
        "data.collator.kwargs.packing=false",
        "tasks=[questions.jsonl]",
        "details=details.jsonl",
    ]);
    let ours: Value = serde_json::from_str(&evaluated.with_code(0).stdout).expect("JSON");
    place
        .run(&[
            "embed",
            "checkpoint=run",
            "input=documents.jsonl",
            "out=v.npy",
        ])
        .with_code(0);
    let checkpoint = RunFolder(place.path().join("run")).final_checkpoint();
    let vectors = place.path().join("v.npy");
    let args = [&checkpoint, &documents, &questions, &vectors];
    let stdout = run_script(&python, "compare_eval.py", args);
    let theirs: Value = serde_json::from_slice(&stdout).expect("JSON");

    let close = |ours: &Value, theirs: &Value| {
        let difference = ours.as_f64().expect("a number") - theirs.as_f64().expect("a number");
        assert!(difference.abs() < 1e-4, "{ours} {theirs}");
    };
    let row = &ours["losses"][0];
    close(&row["loss"], &theirs["loss"]);
    close(&row["bits_per_byte"], &theirs["bits_per_byte"]);
    let details = std::fs::read_to_string(place.path().join("details.jsonl")).expect("details");
    for (line, theirs) in details
        .lines()
        .zip(theirs["log_likelihoods"].as_array().expect("a list"))
    {
        let ours: Value = serde_json::from_str(line).expect("JSON");
        let ours = ours["log_likelihoods"].as_array().expect("a list");
        assert_eq!(Some(ours.len()), theirs.as_array().map(Vec::len));
        ours.iter()
            .zip(theirs.as_array().expect("a list"))
            .for_each(|(a, b)| close(a, b));
    }
    assert_eq!(details.lines().count(), 2);
    assert!(
        theirs["vectors_differ_by"].as_f64() < Some(1e-5),
        "{theirs}"
    );
}

/// Models without their heads, as transformers writes them: `BertModel` with a pooler, `GPT2Model`, `Qwen2Model`.
#[test]
fn transformers_makes_the_same_vectors_of_models_without_their_heads() {
    let Some(python) = python() else {
        return;
    };
    let place = Place::new();
    let path = |name: &str| place.path().join(name);
    make_bert(&python, &path("bert"));
    let texts = [TEXT, "Long ago there was a bear.", "a"];
    place.write("texts.txt", &(texts.join("\n") + "\n"));
    for (name, class) in [
        ("bert", "BertModel"),
        ("gpt2", "GPT2Model"),
        ("qwen2", "Qwen2Model"),
    ] {
        if name != "bert" {
            let nano = NANO.iter().filter(|arg| !arg.starts_with("+model="));
            let args: Vec<_> = nano.copied().collect();
            let (model, run) = (
                format!("+model={name}"),
                format!("hydra.run.dir={name}-run"),
            );
            place
                .run(&[&args[..], &[&model, &run, "trainer.max_steps=5"]].concat())
                .with_code(0);
            let trained = RunFolder(path(&format!("{name}-run"))).final_checkpoint();
            std::fs::rename(trained, path(name)).expect("renamed");
        }
        let body = path(&format!("{name}-body"));
        run_script(
            &python,
            "compare_vectors.py",
            [Path::new("body"), &path(name), &body],
        );
        let [checkpoint, out] = [format!("checkpoint={name}-body"), format!("out={name}.npy")];
        place
            .run(&["embed", &checkpoint, "input=texts.txt", &out])
            .with_code(0);
        let vectors = path(&format!("{name}.npy"));
        let args = [&body, &path("texts.txt"), &vectors];
        let stdout = run_script(&python, "compare_vectors.py", args);
        let theirs: Value = serde_json::from_slice(&stdout).expect("JSON");
        assert_eq!(theirs["class"], class);
        assert!(
            theirs["vectors_differ_by"].as_f64() < Some(1e-5),
            "{name}: {theirs}"
        );
    }
}

/// The model in the folder `base` with the adapter in another.
fn with_adapter(base: &Path, adapter: &Path) -> (Arc<dyn Model>, ParamTree) {
    let (model, params) = whole_model(base);
    let saved = SavedAdapter::open(adapter)
        .expect("readable")
        .expect("an adapter");
    let peft = Saved {
        config: &saved.config,
        tensors: saved.weights.names().collect(),
    };
    let ours = serde_json::json!({"target_modules": []}); // the saved config decides
    let ours = serde_json::from_value(ours).expect("a config");
    let lora = Arc::new(Lora::from_peft(&peft, ours, &model.params()).expect("an adapter"));
    let params = tt_train::load_adapter(
        &lora,
        &params,
        &saved.weights,
        Device::Cpu,
        &ParamSpec::whole,
    );
    (model, params.expect("parameters"))
}

/// Runs a script under `tests/python`, which must succeed; gives what it prints.
fn run_script<A: AsRef<OsStr>>(
    python: &Path,
    name: &str,
    args: impl IntoIterator<Item = A>,
) -> Vec<u8> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let output = Command::new(python)
        .arg(script.join(name))
        .args(args)
        .output()
        .expect("python runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    output.stdout
}

/// The interpreter, if it has what the test needs.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("TT_PYTHON").unwrap_or_else(|| "python3".into());
    let probe = Command::new(&python).args(["-c", FIND_PACKAGES]).output();
    let why = match probe {
        Ok(output) if output.status.success() => return Some(python.into()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{python:?} cannot run this test: {why}"
    );
    eprintln!("skipped: {python:?} cannot run this test: {why}");
    None
}

/// The model of a checkpoint and its parameters.
fn whole_model(checkpoint: &Path) -> (Arc<dyn Model>, ParamTree) {
    let config = std::fs::read_to_string(checkpoint.join("config.json")).expect("config.json");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let class = config["architectures"][0].as_str().expect("a class");
    let models = TABLE;
    let mut entries = models.entries().iter();
    let entry = entries.find(|entry| entry.name.ends_with(class));
    let model = (entry.expect("a model of ours").build.from_hf)(&config).expect("a model");
    let weights = Weights::open(checkpoint).expect("weights");
    let params = tt_train::load_params(&*model, &weights, Device::Cpu).expect("parameters");
    (model, params)
}

/// Writes ids `[1, T]` and the model's logits `[1, T, V]`.
fn write_logits(model: &dyn Model, params: &ParamTree, ids: &[u32], path: &Path) {
    let input = Tensor::from_slice(ids, (1, ids.len()), Device::Cpu).expect("ids");
    let input = Input::rows(input).expect("input");
    let logits = model
        .logits(&Forward::inference(params), &input)
        .expect("logits");
    let shape = logits.dims().to_vec();
    let logits = bytes(&logits.to_vec::<f32>().expect("f32"), f32::to_le_bytes);
    let input_ids: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
    let input_ids = bytes(&input_ids, i64::to_le_bytes);
    let view = |dtype, shape, data| TensorView::new(dtype, shape, data).expect("a tensor");
    let tensors = [
        (
            "input_ids",
            view(Dtype::I64, vec![1, ids.len()], &input_ids),
        ),
        ("logits", view(Dtype::F32, shape, &logits)),
    ];
    let metadata = HashMap::from([("text".to_owned(), TEXT.to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).expect("written");
}

fn bytes<T: Copy, const N: usize>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_bytes(value)).collect()
}
