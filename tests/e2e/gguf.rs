//! Training from a GGUF file.

use std::fs;

use candle_core::quantized::GgmlDType;
use serde_json::Value;
use tt_testkit::{gguf_metadata, write_gguf};

use crate::harness::{NANO, Place, RunFolder};

/// Runs the nano model of a family into `dir`.
fn run(place: &Place, model: &str, dir: &str, more: &[&str]) -> RunFolder {
    let (model, run_dir) = (format!("+model={model}"), format!("hydra.run.dir={dir}"));
    let args: Vec<&str> = NANO
        .iter()
        .map(|arg| {
            if arg.starts_with("+model=") {
                &*model
            } else {
                arg
            }
        })
        .chain(["trainer.max_steps=2", &run_dir])
        .chain(more.iter().copied())
        .collect();
    place.run(&args).with_code(0);
    RunFolder(place.path().join(dir))
}

#[test]
fn training_from_gguf_is_training_from_the_checkpoint_it_was_made_of() {
    for model in ["llama", "qwen2", "qwen3"] {
        let place = Place::new();
        let checkpoint = run(&place, model, "first", &["lr=4e-3"]).final_checkpoint();
        let config = fs::read_to_string(checkpoint.join("config.json")).expect("config.json");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let weights = checkpoint.join("model.safetensors");
        let weights = candle_core::safetensors::load(weights, &candle_core::Device::Cpu);
        let tensors: Vec<_> = weights.expect("weights").into_iter().collect();

        let folder = place.path().join("gguf");
        fs::create_dir(&folder).expect("a folder");
        fs::copy(
            checkpoint.join("tokenizer.json"),
            folder.join("tokenizer.json"),
        )
        .expect("copied");
        let gguf = folder.join("model.gguf");
        write_gguf(&gguf, &gguf_metadata(&config), &tensors, GgmlDType::F32);

        let from = |path: &std::path::Path, dir: &str| {
            let url = format!("model.pretrained_url={}", path.display());
            run(&place, model, dir, &[&url]).timeless_rows()
        };
        let from_gguf = from(&gguf, "from-gguf");
        assert_eq!(from_gguf, from(&checkpoint, "from-checkpoint"));
        assert!(from_gguf.len() > 1, "{from_gguf:?}");
    }
}

#[test]
fn a_gguf_file_that_cannot_be_used_is_refused_at_the_key() {
    let place = Place::new();
    place.write("model.gguf", "GGUF and nothing of it");
    let run = place.run_nano(&["model.pretrained_url=model.gguf"]);
    run.with_code(2)
        .complains("model.gguf is not a valid GGUF file")
        .complains("model.pretrained_url=model.gguf");
}
