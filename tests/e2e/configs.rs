//! Every option of every config group that comes with the program.

use std::path::Path;

use crate::harness::{NANO, Place, RunFolder, entries};

/// `group=option` for each YAML in a folder under `configs/`.
fn choices() -> Vec<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/configs"));
    let mut found = Vec::new();
    let mut folders: Vec<_> = entries(root).into_iter().filter(|it| it.is_dir()).collect();
    while let Some(folder) = folders.pop() {
        let group = folder.strip_prefix(root).expect("under configs/");
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let option = path.file_stem().expect("a file name").display();
            let option = option.to_string();
            // What others begin with names nothing to run.
            if option != "base" {
                found.push(format!("{}={option}", group.display()));
            }
        }
    }
    found
}

/// Runs a command for every option, given also what else a run needs.
fn with_every_option(command: &[&str]) {
    let choices = choices();
    assert!(
        choices.contains(&"model=llama3.2-1b".to_owned()),
        "{choices:?}"
    );
    let place = Place::new();
    place.write("given.jsonl", "{\"text\": \"A text.\"}\n");
    for choice in &choices {
        let group = choice.split('=').next().expect("a group");
        let given: &[&str] = match choice.as_str() {
            "data=stories" | "data=stories_pairs" => &[],
            "data=mixture" => &["data.dataset.kwargs.sources=[{url: stories, max_rows: 10}]"],
            "data=hf" => &["data.dataset.kwargs.path=user/name"],
            // A tokenizer that is trained brings no template.
            "data=sft" => &[
                "data.path=given.jsonl",
                "data.collator.kwargs.template=chatml",
            ],
            _ if group == "data" => &["data.path=given.jsonl"],
            _ => &[],
        };
        let looks_both_ways = ["bert", "masked_lm"].iter().any(|it| choice.contains(it));
        let others = match choice.as_str() {
            _ if looks_both_ways => ["model=bert", "trainer=masked_lm"],
            "trainer/recipe=megatron_gpt" => ["model=gpt2", "trainer=lm"],
            _ => ["model=qwen2", "trainer=lm"],
        };
        let rest = (others.into_iter()).filter(|other| other.split('=').next() != Some(group));
        let arguments: Vec<&str> = rest
            .chain([choice.as_str()])
            .chain(given.iter().copied())
            .collect();
        place.run(&[&arguments[..], command].concat()).with_code(0);
    }
}

#[test]
fn a_batch_size_alone_is_enough() {
    let place = Place::new();
    let run = |global: &str, folder: &str| {
        let command = [
            "+model=qwen2",
            "model/size=nano",
            "+trainer=lm",
            "data.sequence_length=32",
            "trainer.max_steps=1",
            global,
            folder,
        ];
        place.run(&command).with_code(0);
        let run = RunFolder(
            place
                .path()
                .join(folder.trim_start_matches("hydra.run.dir=")),
        );
        run.json("resolved_config.json")["trainer"]["micro_batch_size"].clone()
    };
    assert_eq!(run("trainer.global_batch_size=2", "hydra.run.dir=two"), 2);
    assert_eq!(run("trainer.global_batch_size=6", "hydra.run.dir=six"), 3);
}

#[test]
fn every_option_composes() {
    with_every_option(&["--cfg", "job", "--resolve"]);
}

/// Planning type-checks the configuration and makes two steps with its model, trainer and optimizers, on the device without
/// memory.
#[test]
fn every_option_plans() {
    // More than any of them needs, so that nothing is searched for.
    with_every_option(&["plan", "--memory=100TB"]);
}

/// A model that does not fit is planned again with other settings, dozens of times.
#[test]
#[ignore = "for cargo xtask check --full"]
fn every_option_plans_what_fits_this_machine() {
    with_every_option(&["plan"]);
}

#[test]
fn every_family_of_models_trains_and_generates() {
    for model in ["gpt2", "llama", "qwen3"] {
        let place = Place::new();
        let chosen = format!("+model={model}");
        let args: Vec<_> = NANO
            .iter()
            .map(|&arg| {
                if arg.starts_with("+model=") {
                    &*chosen
                } else {
                    arg
                }
            })
            .chain(["trainer.max_steps=2", "hydra.run.dir=run"])
            .collect();
        place.run(&args).with_code(0);
        let generate = [
            "generate",
            "checkpoint=run",
            "prompt=Long ago",
            "max_new_tokens=8",
        ];
        place.run(&generate).with_code(0).prints("Long ago");
    }
}
