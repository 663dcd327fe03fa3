//! `model/adapter=lora`: trained, gone on with, generated from, exported; and Python's peft and transformers compute what
//! we compute from what we write.

use std::path::Path;

use tt_checkpoint::Weights;

use crate::harness::{Place, RunFolder, nano};

const LORA: &[&str] = &[
    "model/adapter=lora",
    "model.adapter.lora_dropout=0.1",
    "lr=1e-2",
    "trainer.max_steps=8",
    "trainer.checkpoint_interval=1",
];

fn lora<'a>(more: &[&'a str]) -> Vec<&'a str> {
    nano(&[LORA, more].concat())
}

/// A small model of its own in the folder `base`.
fn place_with_base() -> Place {
    let place = Place::new();
    let steps = ["trainer.max_steps=30", "lr=4e-3", "hydra.run.dir=full"];
    place.run_nano(&steps).with_code(0);
    export(&place, &["checkpoint=full", "out=base"]);
    place
}

const ON_BASE: &str = "model.pretrained_url=base";

fn export(place: &Place, args: &[&str]) {
    let args = [&["export"], args].concat();
    place.run(&args).with_code(0).prints("wrote");
}

fn generate(place: &Place, checkpoint: &str) -> String {
    let checkpoint = format!("checkpoint={checkpoint}");
    let options = ["prompt=Long ago", "max_new_tokens=16", "temperature=0"];
    let args = [&["generate", checkpoint.as_str()], &options[..]].concat();
    place.run(&args).with_code(0).stdout
}

fn run_folder(place: &Place, name: &str) -> RunFolder {
    RunFolder(place.path().join(name))
}

fn adapter_file(run: &RunFolder) -> Vec<u8> {
    std::fs::read(run.final_checkpoint().join("adapter_model.safetensors")).expect("an adapter")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = crate::harness::entries(folder);
    let names = entries.iter().filter_map(|path| path.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_checkpoint_holds_the_adapter_and_not_the_base() {
    let place = place_with_base();
    place
        .run(&lora(&[
            ON_BASE,
            "hydra.run.dir=run",
            "model.adapter.target_modules=[q_proj,v_proj]",
        ]))
        .with_code(0)
        .prints("M trained");
    let checkpoint = run_folder(&place, "run").final_checkpoint();
    let found = names(&checkpoint);
    assert!(
        found.contains(&"adapter_config.json".to_owned()),
        "{found:?}"
    );
    assert!(
        !found.contains(&"model.safetensors".to_owned()),
        "{found:?}"
    );
    let weights = Weights::open(&checkpoint.join("adapter_model.safetensors")).expect("weights");
    assert_eq!(weights.names().len(), 2 * 2 * 2);
    let optimizer = checkpoint.join("trainer_state/optimizer.safetensors");
    let state = Weights::open(&optimizer).expect("optimizer state");
    assert!(
        state.names().all(|name| name.contains("lora_")),
        "frozen weights have no state"
    );
    let config = std::fs::read_to_string(checkpoint.join("adapter_config.json")).expect("config");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    let base = place.path().join("base").canonicalize().expect("the base");
    assert_eq!(
        config["base_model_name_or_path"],
        base.display().to_string()
    );
    assert_eq!(
        config["target_modules"],
        serde_json::json!(["q_proj", "v_proj"])
    );
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    // On new weights and on pretrained ones, with biases too.
    let place = place_with_base();
    for (name, base) in [("new", "model.pretrained_url=null"), ("on", ON_BASE)] {
        let whole = format!("{name}-whole");
        let dirs = [
            format!("hydra.run.dir={whole}"),
            format!("hydra.run.dir={name}"),
        ];
        let args = |dir| {
            lora(&[
                base,
                "model.adapter.bias=all",
                "trainer.eval_interval=4",
                dir,
            ])
        };
        place.run(&args(&dirs[0])).with_code(0);
        let mut running = place.start(&args(&dirs[1]));
        let run = run_folder(&place, name);
        let checkpoint = run.join("checkpoints/step-00000002");
        running.wait_until(|| checkpoint.exists());
        running.kill();
        place.run(&args(&dirs[1])).with_code(0).prints("resuming");
        let whole = run_folder(&place, &whole);
        assert_eq!(run.timeless_rows(), whole.timeless_rows(), "{name}");
        assert!(adapter_file(&run) == adapter_file(&whole), "{name}");
    }
}

#[test]
fn another_base_is_refused_when_going_on() {
    let place = place_with_base();
    let args = |more: &[&'static str]| lora(&[more, &[ON_BASE, "hydra.run.dir=run"]].concat());
    place.run(&args(&[])).with_code(0);
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=other"])
        .with_code(0);
    std::fs::rename(place.path().join("base"), place.path().join("was")).expect("renamed");
    export(&place, &["checkpoint=other", "out=base"]);
    let longer = args(&["trainer.max_steps=9"]);
    place
        .run(&longer)
        .with_code(2)
        .complains("another base model")
        .complains("has changed since");
    place
        .run(&["generate", "checkpoint=run", "prompt=a"])
        .with_code(2)
        .complains("another base model");
    std::fs::remove_dir_all(place.path().join("base")).expect("removed");
    std::fs::rename(place.path().join("was"), place.path().join("base")).expect("renamed");
    place.run(&longer).with_code(0);
}

#[test]
fn merged_weights_generate_what_the_adapter_generates() {
    let place = place_with_base();
    for (name, base) in [("new", "model.pretrained_url=null"), ("on", ON_BASE)] {
        let dir = format!("hydra.run.dir={name}");
        place
            .run(&lora(&[base, &dir, "model.adapter.bias=lora_only"]))
            .with_code(0);
        let (checkpoint, out) = (format!("checkpoint={name}"), format!("out={name}-merged"));
        export(&place, &[&checkpoint, &out, "--merge"]);
        let merged = generate(&place, &format!("{name}-merged"));
        assert_eq!(merged, generate(&place, name), "{name}");
        assert!(merged.len() > "Long ago\n".len(), "{merged}");
    }
    assert_ne!(
        generate(&place, "on"),
        generate(&place, "base"),
        "it learned something"
    );
}

#[test]
fn an_exported_adapter_starts_another_run_and_finds_its_base() {
    let place = place_with_base();
    place
        .run(&lora(&[ON_BASE, "hydra.run.dir=run", "model.adapter.r=3"]))
        .with_code(0);
    export(&place, &["checkpoint=run", "out=adapter"]);
    assert!(!names(&place.path().join("adapter")).contains(&"trainer_state".to_owned()));
    assert_eq!(generate(&place, "adapter"), generate(&place, "run"));

    let from = [
        "model.adapter.adapter_url=adapter",
        "hydra.run.dir=next",
        "lr=0",
    ];
    let on_its_own = place
        .run(&lora(&[&[ON_BASE], &from[..]].concat()))
        .with_code(0);
    assert!(!on_its_own.stderr.contains("was trained on"));
    let next = run_folder(&place, "next");
    assert!(
        adapter_file(&next) == adapter_file(&run_folder(&place, "run")),
        "rate 0 changes nothing"
    );
    place
        .run(&lora(&[
            ON_BASE,
            "model.adapter.adapter_url=adapter",
            "model.adapter.r=4",
        ]))
        .with_code(2)
        .complains("`model.adapter.r` contradicts the adapter");

    // On another base it is of little use, which is said: by name, or by fingerprint where the run is known.
    for adapter in ["adapter", "run"] {
        let url = format!("model.adapter.adapter_url={adapter}");
        let said = place
            .run(&lora(&[&url, "model/size=nano", "resume=none"]))
            .with_code(0);
        said.complains("was trained on")
            .complains("here it is put on the weights drawn from seed");
    }

    // The base may have moved.
    std::fs::rename(place.path().join("base"), place.path().join("moved")).expect("renamed");
    place
        .run(&["generate", "checkpoint=adapter", "prompt=a"])
        .with_code(2)
        .complains("base");
    place
        .run(&["generate", "checkpoint=adapter", "base=moved", "prompt=a"])
        .with_code(0);
}

#[test]
fn a_target_that_matches_nothing_is_refused_where_it_is_named() {
    let place = Place::new();
    place
        .run(&lora(&["model.adapter.target_modules=[q_proj,v_prj]"]))
        .with_code(2)
        .complains("`v_prj` matches no linear layer of the model, did you mean `v_proj`?")
        .complains("target_modules=[q_proj,v_prj]");
    assert!(place.run_folders().is_empty());
}

#[test]
fn an_adapter_is_not_trained_on_from_a_whole_model_nor_the_other_way_round() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=full"])
        .with_code(0);
    place.run(&lora(&["hydra.run.dir=run"])).with_code(0);
    place
        .run(&lora(&["resume=full", "hydra.run.dir=a"]))
        .with_code(2)
        .complains("model.pretrained_url");
    place
        .run_nano(&["resume=run", "hydra.run.dir=b"])
        .with_code(2)
        .complains("adapter_model.safetensors");
    place
        .run_nano(&["model.pretrained_url=run/checkpoints/step-00000008"])
        .with_code(2)
        .complains("an adapter");
    place
        .run(&["export", "checkpoint=full", "out=x", "merge=true"])
        .with_code(2)
        .complains("whole model");
}

/// The shape of SmolLM2 135M, whose weights alone are 0.54 GB in f32, trained on rows of 512 tokens.
#[cfg(target_os = "linux")]
#[test]
fn an_adapter_on_135_m_parameters_takes_little_more_than_weights_and_activations() {
    let place = Place::new();
    let peak_bytes = |options: &[&str]| {
        let run = [
            "+model=smollm2-135m",
            "+trainer=lm",
            "model/adapter=lora",
            "data.sequence_length=512",
            "data.num_val_blocks=1",
            "trainer.global_batch_size=1",
            "trainer.micro_batch_size=1",
            "device.threads=2",
            "hydra.run.dir=run",
            "resume=none",
        ];
        let mut running = place.start(&[&run[..], options].concat());
        running.wait_for_rows(&run_folder(&place, "run"), 2);
        let peak_bytes = running.peak_bytes();
        running.kill();
        std::fs::remove_dir_all(place.path().join("run")).expect("removed");
        peak_bytes
    };
    // Of it the logits of 384 rows at once are 75 MB.
    for (options, most) in [
        (&[][..], 1_250_000_000),
        (&["model/remat=mlp"], 950_000_000),
        (&["model.adapter.base_dtype=bf16"], 1_000_000_000),
    ] {
        let peak_bytes = peak_bytes(options);
        assert!(peak_bytes < most, "{options:?}: {peak_bytes} of {most}");
        assert!(
            peak_bytes > 500_000_000,
            "the weights are there: {peak_bytes}"
        );
    }
}
#[test]
fn a_base_in_bf16_gives_nearly_the_losses_of_f32_and_is_remembered() {
    let place = place_with_base();
    let last_loss = |name: &str, options: &[&str]| {
        let dir = format!("hydra.run.dir={name}");
        let args = [&[ON_BASE, dir.as_str()], options].concat();
        place.run(&lora(&args)).with_code(0);
        let rows = run_folder(&place, name).rows();
        let mut losses = rows.iter().filter_map(|row| row["loss"].as_f64());
        losses.next_back().expect("a loss")
    };
    let whole = last_loss("whole", &[]);
    for (name, options) in [
        ("base", &["model.adapter.base_dtype=bf16"][..]),
        ("all", &["model.adapter.base_dtype=bf16", "precision=bf16"]),
    ] {
        let name = format!("{name}-bf16");
        let half = last_loss(&name, options);
        assert!(half != whole, "{name}: {half}");
        assert!(
            (half - whole).abs() < 0.01 * whole,
            "{name}: {half} {whole}"
        );
    }
    // The checkpoint says how its base is held: another would be refused by its fingerprint.
    let (name, longer) = ("hydra.run.dir=base-bf16", "trainer.max_steps=9");
    place
        .run(&lora(&[
            ON_BASE,
            name,
            longer,
            "model.adapter.base_dtype=f32",
            "resume=base-bf16",
        ]))
        .with_code(2)
        .complains("held in another base_dtype");
    place
        .run(&lora(&[
            ON_BASE,
            name,
            longer,
            "model.adapter.base_dtype=bf16",
        ]))
        .with_code(0);
    export(
        &place,
        &["checkpoint=base-bf16", "out=merged", "merge=true"],
    );
    assert_eq!(generate(&place, "merged"), generate(&place, "base-bf16"));
}
