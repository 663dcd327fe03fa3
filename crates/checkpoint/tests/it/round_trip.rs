//! What is written is what is read, and lies on disk as Hugging Face lays it.

use std::{fs, num::NonZeroU64};

use crate::common::{assert_holds, keep_last, latest_step, names, snapshot, write};
use serde_json::Value;
use tt_checkpoint::{
    CheckpointConfig, Dtype, HostTensor, SavedAdapter, Snapshot, Weights, Writer, latest,
    save_model,
};

#[test]
fn round_trip_is_bit_exact() {
    let dir = tempfile::tempdir().unwrap();
    let mut original = snapshot(3);
    let odd = [
        f32::NAN,
        -0.0,
        f32::MIN_POSITIVE / 2.0,
        f32::INFINITY,
        1.0e-40,
    ];
    let odd = HostTensor::from_f32([5], &odd);
    original.optimizer.insert("odd".into(), odd);

    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    assert!(writer.submit(original.clone()).unwrap().is_none());
    let saved = writer.finish().unwrap().unwrap();

    let found = latest(dir.path()).unwrap();
    assert!(found.skipped.is_empty());
    let checkpoint = found.checkpoint.unwrap();
    assert_eq!(checkpoint.dir(), saved.dir);
    assert_holds(&checkpoint, &original);
}

#[test]
fn folder_has_the_hugging_face_files_and_the_trainer_state() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = dir.path().join("tokenizer.json");
    fs::write(&tokenizer, "{\"model\": {}}").unwrap();
    let checkpoints = dir.path().join("checkpoints");

    let mut writer = Writer::open(&checkpoints, keep_last(3)).unwrap();
    let assets = vec![tokenizer.clone()];
    writer
        .submit(Snapshot {
            assets,
            ..snapshot(123)
        })
        .unwrap();
    let saved = writer.finish().unwrap().unwrap();

    assert_eq!(names(&checkpoints), ["step-00000123"]);
    assert_eq!(
        names(&saved.dir),
        [
            "config.json",
            "generation_config.json",
            "manifest.json",
            "model.safetensors",
            "tokenizer.json",
            "trainer_state"
        ]
    );
    assert_eq!(
        names(&saved.dir.join("trainer_state")),
        ["optimizer.safetensors", "state.json"]
    );
    let copy = fs::read(saved.dir.join("tokenizer.json")).unwrap();
    assert_eq!(copy, fs::read(&tokenizer).unwrap());

    let total: u64 = manifest(&saved.dir)["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(saved.num_bytes, total);
}

#[test]
fn weights_file_is_one_that_the_reference_reader_and_transformers_accept() {
    let dir = tempfile::tempdir().unwrap();
    let mut mixed = snapshot(1);
    mixed.model.clear();
    mixed.model.insert(
        "z.u8".into(),
        HostTensor {
            dtype: Dtype::U8,
            shape: vec![3],
            bytes: vec![1, 2, 3],
        },
    );
    mixed
        .model
        .insert("b.f32".into(), HostTensor::from_f32([2], &[1.0, 2.0]));
    mixed
        .model
        .insert("a.f32".into(), HostTensor::from_f32([1, 1], &[3.0]));
    mixed
        .model
        .insert("ids".into(), HostTensor::from_i64([1], &[-1]));
    mixed
        .model
        .insert("empty".into(), HostTensor::from_u32([0, 4], &[]));
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    writer.submit(mixed.clone()).unwrap();
    let saved = writer.finish().unwrap().unwrap();

    let bytes = fs::read(saved.dir.join("model.safetensors")).unwrap();
    let (header_bytes, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header_bytes % 8, 0);
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    // Widest first, so every tensor is aligned; the model's order within a width.
    assert_eq!(
        header.offset_keys(),
        ["ids", "b.f32", "a.f32", "empty", "z.u8"]
    );
    for (name, info) in header.tensors() {
        assert_eq!(
            info.data_offsets.0 % info.dtype.bitsize().div_ceil(8),
            0,
            "{name}"
        );
    }
    let weights = latest(dir.path())
        .unwrap()
        .checkpoint
        .unwrap()
        .model()
        .unwrap();
    for (name, tensor) in &mixed.model {
        assert_eq!(&weights.read(name).unwrap(), tensor);
    }
}

#[test]
fn large_model_is_split_with_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let config = CheckpointConfig {
        max_shard_bytes: NonZeroU64::new(1100).unwrap(), // two tensors of 512 bytes
        ..CheckpointConfig::default()
    };
    write(dir.path(), config, [5]);

    let folder = dir.path().join("step-00000005");
    let index = folder.join("model.safetensors.index.json");
    let json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    assert_eq!(json["metadata"]["total_size"], 4 * 512);
    assert_eq!(json["metadata"]["total_parameters"], 4 * 128);
    assert_eq!(
        json["weight_map"]["embed.weight"],
        "model-00001-of-00002.safetensors"
    );
    assert_eq!(
        json["weight_map"]["head.weight"],
        "model-00002-of-00002.safetensors"
    );
    assert!(!folder.join("model.safetensors").exists());

    let checkpoint = latest(dir.path()).unwrap().checkpoint.unwrap();
    assert_holds(&checkpoint, &snapshot(5));
    let by_index = Weights::open(&index).unwrap().read_all().unwrap();
    assert_eq!(by_index, snapshot(5).model);
}

#[test]
fn equal_snapshots_give_equal_folders() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write(a.path(), keep_last(3), [7]);
    write(b.path(), keep_last(3), [7]);
    let manifest_of = |dir: &tempfile::TempDir| manifest(&dir.path().join("step-00000007"));
    assert_eq!(manifest_of(&a), manifest_of(&b));
}

#[test]
fn step_that_exists_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(3), [4]);
    let mut other = snapshot(4);
    other.state = serde_json::json!("another");
    other.generation_config = Value::Null;
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    writer.submit(other.clone()).unwrap();
    let saved = writer.finish().unwrap().unwrap();

    assert_eq!(names(dir.path()), ["step-00000004"]);
    assert!(!saved.dir.join("generation_config.json").exists());
    assert_holds(&latest(dir.path()).unwrap().checkpoint.unwrap(), &other);
}

#[test]
fn steps_beyond_eight_digits_still_order_by_number() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(3), [99_999_999, 100_000_000]);
    assert_eq!(latest_step(dir.path()), Some(100_000_000));
}

#[test]
fn folder_without_checkpoints_or_no_folder_has_no_latest() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("step-latest")).unwrap();
    fs::create_dir(dir.path().join("step-12")).unwrap(); // not a name of ours
    assert_eq!(latest_step(dir.path()), None);
    assert_eq!(latest_step(&dir.path().join("absent")), None);
}

fn manifest(dir: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("manifest.json")).unwrap()).unwrap()
}

fn adapter(step: u64) -> Snapshot {
    let mut snapshot = Snapshot {
        adapter_config: serde_json::json!({"peft_type": "LORA", "r": 2}),
        ..snapshot(step)
    };
    snapshot.model.clear();
    let name = "base_model.model.q_proj.lora_A.weight".to_owned();
    let tensor = HostTensor::from_f32([2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    snapshot.model.insert(name, tensor);
    snapshot
}

#[test]
fn an_adapter_lies_as_peft_lays_it_and_is_verified_like_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    writer.submit(adapter(7)).unwrap();
    let saved = writer.finish().unwrap().unwrap();
    assert_eq!(
        names(&saved.dir),
        [
            "adapter_config.json",
            "adapter_model.safetensors",
            "generation_config.json",
            "manifest.json",
            "trainer_state"
        ]
    );
    let read = SavedAdapter::open(&saved.dir).unwrap().unwrap();
    assert_eq!(read.config["r"], 2);
    let mut values = Vec::new();
    let name = "base_model.model.q_proj.lora_A.weight";
    read.weights.read_f32(name, &mut values).unwrap();
    assert_eq!(values, [1., 2., 3., 4., 5., 6., 7., 8.]);

    let error = Weights::open(&saved.dir).unwrap_err().to_string();
    assert!(error.contains("an adapter"), "{error}");
    fs::write(saved.dir.join("adapter_config.json"), "{}").unwrap();
    let found = latest(dir.path()).unwrap();
    assert!(found.checkpoint.is_none());
    assert!(found.skipped[0].to_string().contains("adapter_config.json"));
}

#[test]
fn a_whole_model_has_no_adapter() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(3), [1]);
    let checkpoint = latest(dir.path()).unwrap().checkpoint.unwrap();
    assert!(SavedAdapter::open(checkpoint.dir()).unwrap().is_none());
}

#[test]
fn an_exported_model_has_what_others_read_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    save_model(&out, snapshot(3), u64::MAX).unwrap();
    let expected = ["config.json", "generation_config.json", "model.safetensors"];
    assert_eq!(names(&out), expected);
    assert_eq!(names(dir.path()), ["out"], "no remains");
    assert_eq!(Weights::open(&out).unwrap().names().len(), 4);

    let error = save_model(&out, snapshot(4), u64::MAX).unwrap_err();
    assert!(error.to_string().contains("out"), "{error}");
    assert_eq!(names(&out), expected, "what is there is not touched");
}
