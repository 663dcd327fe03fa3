//! A checkpoint continues a prompt.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::harness::Place;

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
