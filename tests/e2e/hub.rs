//! Models and tokenizers on the Hub, here one on loopback.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::harness::{Finished, Place, RunFolder, Running, entries, nano};
use crate::hub_server::{Fault, Server, TOKEN};

/// A folder, and a Hub with one model, `u/base`, which is also in the folder `base`.
struct World {
    place: Place,
    server: Server,
}

impl World {
    fn new() -> Self {
        let place = Place::new();
        place
            .run_nano(&["trainer.max_steps=1", "hydra.run.dir=run"])
            .with_code(0);
        place
            .run(&["export", "checkpoint=run", "out=base"])
            .with_code(0);
        let world = Self {
            place,
            server: Server::start(),
        };
        let files = world.files();
        let files = files
            .iter()
            .map(|(name, bytes)| (name.as_str(), &bytes[..], name.ends_with(".safetensors")));
        let files: Vec<_> = files.collect();
        world.server.repo("models/u/base", &files);
        world
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.place.path().join("base")).unwrap();
        let file = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        };
        entries.map(file).collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command
            .env("HF_ENDPOINT", self.server.endpoint())
            .env("HF_HOME", self.place.path().join("hf"));
        for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Finished {
        Running::start(self.command(args)).finish()
    }

    /// The loss of one step from the weights that `url` names.
    fn loss(&self, url: &str, folder: &str) -> f64 {
        let url = format!("model.pretrained_url={url}");
        let dir = format!("hydra.run.dir={folder}");
        self.run(&nano(&[&url, &dir, "trainer.max_steps=1"]))
            .with_code(0);
        let metrics =
            fs::read_to_string(self.place.path().join(folder).join("metrics.jsonl")).unwrap();
        let loss = metrics.lines().rev().find_map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["loss"].as_f64()
        });
        loss.unwrap()
    }
}

#[test]
fn a_model_on_the_hub_is_one_in_a_folder() {
    let world = World::new();
    let url = "model.pretrained_url=u/base";
    // A plan reads no weights, so it fetches none.
    world
        .run(&["plan", "+model=qwen2", "+trainer=lm", url])
        .with_code(0);
    assert!(!world.server.requests("/config.json").is_empty());
    assert!(world.server.requests("/storage").is_empty());

    let here = world.loss("base", "here");
    assert_eq!(world.loss("u/base", "id"), here);
    assert_eq!(world.loss("hf://u/base@main", "url"), here);
    assert_eq!(world.server.requests("/storage").len(), 1);

    // As larger models are.
    let weights = fs::read(world.place.path().join("base/model.safetensors")).unwrap();
    let names = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let shard = "model-00001-of-00001.safetensors";
    let map: serde_json::Map<_, _> = names
        .names()
        .into_iter()
        .map(|name| (name.to_owned(), shard.into()))
        .collect();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    let mut files = world.files();
    files.retain(|(name, _)| name != "model.safetensors");
    files.push((shard.to_owned(), weights.clone()));
    files.push((
        "model.safetensors.index.json".to_owned(),
        index.into_bytes(),
    ));
    let files: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), &bytes[..], name == shard))
        .collect();
    world.server.repo("models/u/sharded", &files);
    assert_eq!(world.loss("u/sharded", "sharded"), here);

    let before = world.server.requests("").len();
    let mut offline = world.command(&nano(&[url, "trainer.max_steps=1"]));
    offline.env("HF_HUB_OFFLINE", "1");
    Running::start(offline).finish().with_code(0);
    // What is here is meant, whatever the Hub has.
    fs::create_dir(world.place.path().join("u")).unwrap();
    fs::rename(
        world.place.path().join("base"),
        world.place.path().join("u/base"),
    )
    .unwrap();
    assert_eq!(world.loss("u/base", "moved"), here);
    assert_eq!(world.server.requests("").len(), before);
}

#[test]
fn a_tokenizer_on_the_hub_comes_without_its_weights() {
    let world = World::new();
    world
        .run(&nano(&[
            "data.tokenizer.path=u/base",
            "trainer.max_steps=1",
        ]))
        .with_code(0);
    assert!(world.server.requests("/storage").is_empty());
    assert_eq!(world.server.requests("/tokenizer.json").len(), 1);
}

#[test]
fn what_the_hub_refuses_is_said_at_the_key() {
    let world = World::new();
    let refused = |url: &str| {
        let url = format!("model.pretrained_url={url}");
        world.run(&nano(&[&url, "trainer.max_steps=1"]))
    };
    refused("u/missing").complains("`model.pretrained_url`: there is no u/missing here, so the Hub was asked: hf://u/missing: there is no such repository");
    world
        .run(&nano(&["data.tokenizer.path=u/missing"]))
        .with_code(2)
        .complains("`data.tokenizer.path`: there is no u/missing here, so the Hub was asked");
    refused("hf://datasets/u/base").complains("is data, not a model");
    world.server.repo(
        "models/u/pickled",
        &[
            ("config.json", b"{}", false),
            ("pytorch_model.bin", b"x", true),
        ],
    );
    refused("u/pickled")
        .complains("hf://u/pickled has no model.safetensors: weights as in pytorch_model.bin");
    world
        .server
        .state()
        .repos
        .get_mut("models/u/base")
        .unwrap()
        .is_gated = true;
    refused("u/base").complains("accept the terms on");
    world.server.fault(
        "/revision/",
        Fault::Answer(404, vec![("x-error-code", "RevisionNotFound".into())], ""),
    );
    refused("u/base@v2").complains("hf://u/base: there is no revision `v2`");
}

#[test]
fn a_run_is_sent_with_a_page_about_it_and_can_be_trained_from_again() {
    let world = World::new();
    let upload = |more: &[&str]| {
        let mut command =
            world.command(&[&["upload", "checkpoint=run", "repo=u/mine"], more].concat());
        command.env("HF_TOKEN", TOKEN);
        Running::start(command).finish()
    };
    upload(&[]).with_code(0).prints("/u/mine: commit ");
    let there = |path: &str| {
        let state = world.server.state();
        let repo = &state.repos["models/u/mine"];
        assert!(repo.is_private);
        repo.files.get(path).map(|file| file.content.clone())
    };
    let page = String::from_utf8(there("README.md").unwrap()).unwrap();
    assert!(
        page.contains("| `model.type` | qwen2.Qwen2ForCausalLM |"),
        "{page}"
    );
    assert!(
        page.contains("## Loss") && page.contains("| 1 | "),
        "{page}"
    );
    assert!(there("model.safetensors").is_some() && there("tokenizer.json").is_some());
    let state = world.server.state();
    let files = state.repos["models/u/mine"].files.keys();
    assert!(
        files
            .clone()
            .all(|path| !path.starts_with("trainer_state") && path != "manifest.json"),
        "{files:?}"
    );
    drop(state);

    let puts = world.server.requests("PUT ").len();
    upload(&[]).with_code(0).prints("has all of it already");
    assert_eq!(world.server.requests("PUT ").len(), puts);
    // A page that somebody has written stays.
    world
        .server
        .repo("models/u/mine", &[("README.md", b"# Mine", false)]);
    upload(&[]).with_code(0).prints("has all of it already");
    assert_eq!(there("README.md").unwrap(), b"# Mine");

    let mut command = world.command(&nano(&[
        "model.pretrained_url=u/mine",
        "trainer.max_steps=1",
        "hydra.run.dir=again",
    ]));
    command.env("HF_TOKEN", TOKEN);
    Running::start(command).finish().with_code(0);

    let mut command = world.command(&["upload", "checkpoint=run", "repo=u/mine"]);
    command.env("HF_TOKEN", "hf_wrong");
    let refused = Running::start(command).finish().with_code(2);
    assert!(!refused.stderr.contains("hf_wrong"), "{refused:?}");
    refused.complains("the Hub does not accept the token");
}

#[test]
fn an_adapter_remembers_its_base_by_the_name_on_the_hub() {
    let world = World::new();
    fs::rename(
        world.place.path().join("base"),
        world.place.path().join("elsewhere"),
    )
    .unwrap();
    let lora = [
        "model.pretrained_url=u/base",
        "model/adapter=lora",
        "trainer.max_steps=1",
        "hydra.run.dir=lora",
    ];
    world.run(&nano(&lora)).with_code(0);
    world
        .run(&["export", "checkpoint=lora", "out=adapter"])
        .with_code(0);
    let config = fs::read(world.place.path().join("adapter/adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], "u/base");
    let before = world.server.requests("/storage").len();
    for args in [
        &["export", "checkpoint=lora", "out=merged", "--merge"][..],
        &[
            "generate",
            "checkpoint=adapter",
            "prompt=One",
            "max_new_tokens=2",
        ],
    ] {
        let mut command = world.command(args);
        command.env("HF_HUB_OFFLINE", "1");
        Running::start(command).finish().with_code(0);
    }
    assert_eq!(world.server.requests("/storage").len(), before);
}

/// A run, a folder and an id of the Hub are named at the same places, and mean the same.
#[test]
fn a_checkpoint_or_an_adapter_on_the_hub_is_one_in_a_folder() {
    let world = World::new();
    let lora = [
        "model.pretrained_url=u/base",
        "model/adapter=lora",
        "hydra.run.dir=lora",
        "trainer.max_steps=1",
    ];
    world.run(&nano(&lora)).with_code(0);
    let upload = ["upload", "checkpoint=lora", "repo=u/adapter"];
    let mut upload = world.command(&upload);
    upload.env("HF_TOKEN", TOKEN);
    Running::start(upload).finish().with_code(0);
    world
        .server
        .state()
        .repos
        .get_mut("models/u/adapter")
        .unwrap()
        .is_private = false;

    let generated = |checkpoint: &str, more: &[&str]| {
        let checkpoint = format!("checkpoint={checkpoint}");
        let args = ["generate", &checkpoint, "prompt=One", "max_new_tokens=8"];
        let done = world.run(&[&args[..], more].concat());
        done.with_code(0).stdout
    };
    assert_eq!(generated("u/base", &[]), generated("base", &[]));
    assert_eq!(generated("hf://u/base@main", &[]), generated("run", &[]));
    let adapted = generated("lora", &[]);
    assert_eq!(generated("u/adapter@main", &[]), adapted);
    assert_eq!(generated("lora", &["base=hf://u/base"]), adapted);

    let read = |path: &str| fs::read(world.place.path().join(path)).unwrap();
    let export = |checkpoint: &str, out: &str, more: &[&str]| {
        let (checkpoint, to) = (format!("checkpoint={checkpoint}"), format!("out={out}"));
        let args = [&["export", &checkpoint, &to], more].concat();
        world.run(&args).with_code(0);
        read(&format!("{out}/model.safetensors"))
    };
    assert_eq!(
        export("u/base", "copy", &[]),
        read("base/model.safetensors")
    );
    assert_eq!(
        export("u/adapter", "merged", &["--merge"]),
        export("lora", "merged-here", &["--merge"])
    );
    // Trained further, from the same weights.
    let further = |adapter: &str, folder: &str| {
        let adapter = format!("model.adapter.adapter_url={adapter}");
        let dir = format!("hydra.run.dir={folder}");
        let args = [&lora[..2], &[&adapter, &dir, "trainer.max_steps=1"]].concat();
        world.run(&nano(&args)).with_code(0);
        let checkpoint = format!("{folder}/checkpoints/step-00000001");
        read(&format!("{checkpoint}/adapter_model.safetensors"))
    };
    assert_eq!(further("u/adapter", "a"), further("lora", "b"));

    world
        .run(&["generate", "checkpoint=u/missing", "prompt=One"])
        .with_code(2)
        .complains("there is no u/missing here, so the Hub was asked");
}

/// Only the files of what is read are fetched, and the batches are those of the same files here.
#[test]
fn a_data_set_on_the_hub_is_one_in_files() {
    let world = World {
        place: Place::new(),
        server: Server::start(),
    };
    let golden = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data");
        fs::read(folder.join(name)).expect("a file of rows")
    };
    let (train, validation) = (golden("text_zstd.parquet"), golden("text_none.parquet"));
    world.server.repo(
        "datasets/u/corpus",
        &[
            ("README.md", b"# corpus", false),
            ("data/train-00000-of-00001.parquet", &train, true),
            ("data/validation-00000-of-00001.parquet", &validation, true),
            (
                "data/test-00000-of-00001.parquet",
                &golden("text_lz4.parquet"),
                true,
            ),
            ("extra/train.jsonl", &golden("text.jsonl"), false),
        ],
    );
    fs::write(world.place.path().join("train.parquet"), &train).unwrap();
    fs::write(world.place.path().join("val.parquet"), &validation).unwrap();
    let batch = |more: &[&str]| {
        let args = [
            "batch",
            "--json",
            "data.nulls=skip",
            "data.tokenizer.vocab_size=300",
            "data.sequence_length=32",
        ];
        let shown = world.run(&[&args[..], more].concat()).with_code(0).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let rows = shown[0]["rows"].as_array().expect("rows").clone();
        rows.iter()
            .map(|row| row["input_ids"].clone())
            .collect::<Vec<_>>()
    };
    let here = batch(&[
        "data=parquet",
        "data.path=train.parquet",
        "data.val_path=val.parquet",
    ]);
    assert_eq!(
        batch(&["data=hf", "data.dataset.kwargs.path=u/corpus"]),
        here
    );
    // Training, validation, and not the test split nor what is there twice.
    assert_eq!(world.server.requests("/storage").len(), 2);
    let url = "data.dataset.url=hf://datasets/u/corpus@main";
    assert_eq!(batch(&["data=files", "data.path=null", url]), here);
    let part = [
        "data=hf",
        "data.dataset.kwargs.path=u/corpus",
        "data.dataset.kwargs.name=extra",
    ];
    batch(&part);

    let refused = |more: &[&str]| world.run(&[&["batch"], more].concat()).with_code(2);
    refused(&["data=hf", "data.dataset.kwargs.path=u/nothing"]).complains("u/nothing");
    refused(&[
        "data=hf",
        "data.dataset.kwargs.path=u/corpus",
        "data.dataset.kwargs.split=dev",
    ])
    .complains("no split `dev`; there is test, train, validation");
    refused(&["data=hf", "data.dataset.kwargs.path=hf://u/model"]).complains("is a model");
}

/// A Parquet file of the same rows and `more` bytes that nobody reads.
fn padded(file: &[u8], more: usize) -> Vec<u8> {
    let (rest, end) = file.split_at(file.len() - 8);
    let footer = u32::from_le_bytes(end[..4].try_into().unwrap()) as usize;
    let (data, footer) = rest.split_at(rest.len() - footer);
    [data, &vec![0; more], footer, end].concat()
}

/// No whole file arrives, and yet there are batches, the same as of the files here; a run that began so goes on with the
/// files, step by step as one that had them from the start.
#[test]
fn a_large_data_set_is_trained_on_while_it_is_fetched() {
    let world = World {
        place: Place::new(),
        server: Server::start(),
    };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data");
    let golden = |name: &str| fs::read(folder.join(name)).expect("a file of rows");
    let files = [
        ("data/train-00000-of-00002.parquet", "text_zstd.parquet"),
        ("data/train-00001-of-00002.parquet", "text_lz4.parquet"),
        (
            "data/validation-00000-of-00001.parquet",
            "text_none.parquet",
        ),
    ];
    let files = files.map(|(path, name)| (path, padded(&golden(name), 12 << 20)));
    for (path, content) in &files {
        let place = world.place.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
    }
    let files = files
        .each_ref()
        .map(|(path, content)| (*path, &content[..], true));
    world.server.repo("datasets/u/large", &files);
    let is_open = Arc::new(AtomicBool::new(false));
    world.server.state().whole_files = Some(Arc::clone(&is_open));

    let common = ["data.nulls=skip", "data.tokenizer.vocab_size=300"];
    let hub = ["data=hf", "data.dataset.kwargs.path=u/large"];
    let here = ["data=parquet", "data.path=data"];
    let batch = |data: &[&str]| {
        let args = [
            &["batch", "--json", "data.sequence_length=32"],
            &common[..],
            data,
        ]
        .concat();
        let shown = world.run(&args).with_code(0).stdout;
        let mut shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        // Where rows are from differs.
        let rows = shown[0]["rows"].as_array_mut().expect("rows");
        let ids = rows.iter_mut().map(|row| row["input_ids"].take());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(batch(&hub), batch(&here));

    let train = |data: &[&str], folder: &str, steps: u32| {
        let (dir, steps) = (
            format!("hydra.run.dir={folder}"),
            format!("trainer.max_steps={steps}"),
        );
        let args = [&common[..], data, &[&dir, &steps]].concat();
        world.run(&nano(&args)).with_code(0)
    };
    train(&hub, "hub", 2);
    let snapshots = world
        .place
        .path()
        .join("hf/hub/datasets--u--large/snapshots");
    let is_here = || {
        let all = entries(&snapshots).into_iter();
        let parquet = all.flat_map(|commit| entries(&commit.join("data")));
        parquet.count()
    };
    assert_eq!(is_here(), 0);
    is_open.store(true, Ordering::SeqCst);
    let done = train(&hub, "hub", 4);
    assert!(!done.stdout.contains("the data has changed"), "{done:?}");
    train(&here, "here", 4);
    let steps = |name: &str| {
        let rows = RunFolder(world.place.path().join(name)).timeless_rows();
        let of_steps = rows.into_iter().filter(|row| row.contains("\"loss\":"));
        of_steps.collect::<Vec<_>>()
    };
    assert_eq!(steps("hub").len(), 4);
    assert_eq!(steps("hub"), steps("here"));
}

/// The page says which files make which part; a part may be one of a mixture.
#[test]
fn the_parts_of_a_data_set_are_those_that_its_page_names() {
    let world = World {
        place: Place::new(),
        server: Server::start(),
    };
    let page = "---\nconfigs:\n- config_name: easy\n  data_files: a/*.jsonl\n- config_name: hard\n  data_files:\n  - split: train\n    path: b/x.jsonl\n---\n# Corpus\n";
    let rows = |word: &str| format!("{{\"text\": \"{word} {word}\"}}\n").repeat(50);
    let (easy, hard) = (rows("easy"), rows("hard"));
    world.server.repo(
        "datasets/u/parts",
        &[
            ("README.md", page.as_bytes(), false),
            ("a/any.jsonl", easy.as_bytes(), false),
            ("b/x.jsonl", hard.as_bytes(), false),
        ],
    );
    let batch =
        |more: &[&str]| world.run(&[&["batch", "data.tokenizer.vocab_size=300"], more].concat());
    let part = |name: &str| format!("data.dataset.kwargs.name={name}");
    let of = |name: &str| {
        let args = ["data=hf", "data.dataset.kwargs.path=u/parts"];
        batch(&[&args[..], &[&part(name)]].concat())
    };
    assert!(
        !of("easy")
            .with_code(0)
            .prints("easy")
            .stdout
            .contains("hard")
    );
    assert!(
        !of("hard")
            .with_code(0)
            .prints("hard")
            .stdout
            .contains("easy")
    );
    of("medium")
        .with_code(2)
        .complains("hf://datasets/u/parts has no part `medium`; it has easy, hard");
    batch(&["data=hf", "data.dataset.kwargs.path=u/parts"])
        .with_code(2)
        .complains("choose one with data.dataset.kwargs.name: easy, hard");
    let mixture = "data.dataset.kwargs.sources=[{url: hf, kwargs: {path: u/parts, name: easy}}, {url: u/parts, kwargs: {name: hard}}]";
    batch(&["data=mixture", mixture])
        .with_code(0)
        .prints("easy")
        .prints("hard");
}
