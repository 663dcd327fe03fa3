//! Reading weights of any origin, and matching them with a model.

use std::fs;

use crate::common::{keep_last, write};
use half::{bf16, f16};
use serde_json::json;
use tt_checkpoint::{Allow, CheckpointConfig, Dtype, Error, HostTensor, Snapshot, Weights, Writer};

/// A folder with a `model.safetensors` of these tensors.
fn weights(tensors: Vec<(String, HostTensor)>) -> (tempfile::TempDir, Weights) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), CheckpointConfig::default()).unwrap();
    let model = tensors.into_iter().collect();
    writer
        .submit(Snapshot {
            model,
            ..Snapshot::default()
        })
        .unwrap();
    let saved = writer.finish().unwrap().unwrap();
    let weights = Weights::open(&saved.dir).unwrap();
    (dir, weights)
}

fn zeros(names_and_shapes: &[(&str, &[usize])]) -> Vec<(String, HostTensor)> {
    let tensor = |shape: &[usize]| HostTensor::from_f32(shape, &vec![0.0; shape.iter().product()]);
    names_and_shapes
        .iter()
        .map(|(n, s)| ((*n).to_owned(), tensor(s)))
        .collect()
}

#[test]
fn every_float_type_reads_as_f32() {
    let tensor = |dtype, bytes: Vec<u8>| HostTensor {
        dtype,
        shape: vec![3],
        bytes,
    };
    let values = [1.5f32, -0.1, 3e-5];
    let f64s = values.map(|v| f64::from(v) * (1.0 + 1e-9)); // rounds back
    let (_dir, weights) = weights(vec![
        ("f32".into(), HostTensor::from_f32([3], &values)),
        (
            "f64".into(),
            tensor(
                Dtype::F64,
                f64s.iter().flat_map(|v| v.to_le_bytes()).collect(),
            ),
        ),
        (
            "f16".into(),
            tensor(
                Dtype::F16,
                values
                    .iter()
                    .flat_map(|&v| f16::from_f32(v).to_le_bytes())
                    .collect(),
            ),
        ),
        (
            "bf16".into(),
            tensor(
                Dtype::BF16,
                values
                    .iter()
                    .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
                    .collect(),
            ),
        ),
        ("ids".into(), HostTensor::from_i64([1], &[1])),
    ]);
    let mut out = vec![9.0; 100];
    for (name, expected) in [
        ("f32", values),
        ("f64", values),
        ("f16", values.map(|v| f16::from_f32(v).to_f32())),
        ("bf16", values.map(|v| bf16::from_f32(v).to_f32())),
    ] {
        weights.read_f32(name, &mut out).unwrap();
        assert_eq!(out, expected, "{name}");
    }
    let error = weights.read_f32("ids", &mut out).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotAFloat {
                dtype: Dtype::I64,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn runs_of_elements_read_as_they_are_in_the_whole() {
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let (_dir, weights) = weights(vec![
        ("f32".into(), HostTensor::from_f32([6, 4], &values)),
        ("bf16".into(), HostTensor::from_f32_as_bf16([6, 4], &values)),
    ]);
    let mut out = vec![9.0; 100];
    for name in ["f32", "bf16"] {
        weights
            .read_f32_runs(name, [4..8, 20..21, 9..9], &mut out)
            .unwrap();
        assert_eq!(out, [4., 5., 6., 7., 20.], "{name}");
        let error = weights.read_f32_runs(name, [0..4, 20..25], &mut out);
        assert_eq!(
            error.unwrap_err().to_string(),
            format!("elements 20..25 of tensor `{name}`, which has 24")
        );
    }
}

#[test]
fn tensor_of_many_chunks_reads_in_full() {
    let n = (1 << 20) + 12_345; // more than four chunks, the last one short
    let values: Vec<_> = (0..n).map(|i| i as f32).collect();
    let (_dir, weights) = weights(vec![("x".into(), HostTensor::from_f32([n], &values))]);
    let mut out = Vec::new();
    weights.read_f32("x", &mut out).unwrap();
    assert_eq!(out, values);
}

#[test]
fn one_file_under_any_name_opens() {
    let (dir, weights) = weights(zeros(&[("w", &[2])]));
    let other = dir.path().join("adapter.safetensors");
    fs::rename(weights.path().join("model.safetensors"), &other).unwrap();
    assert_eq!(
        Weights::open(&other).unwrap().names().collect::<Vec<_>>(),
        ["w"]
    );

    let error = Weights::open(weights.path()).unwrap_err();
    assert!(
        error.to_string().contains("looked for model.safetensors"),
        "{error}"
    );
    let error = Weights::open(dir.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it has adapter.safetensors: name that"),
        "{error}"
    );
}

#[test]
fn pickled_weights_are_declined_by_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    let error = Weights::open(dir.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("pytorch_model.bin is in PyTorch's pickle"),
        "{error}"
    );
}

#[test]
fn unknown_tensor_is_an_error_with_the_nearest_name() {
    let (_dir, weights) = weights(zeros(&[
        ("model.norm.weight", &[2]),
        ("lm_head.weight", &[2]),
    ]));
    let error = weights.read("model.norm.weigth").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the nearest is `model.norm.weight`"),
        "{error}"
    );
}

#[test]
fn index_with_missing_shards_is_one_error() {
    let dir = tempfile::tempdir().unwrap();
    let config = CheckpointConfig {
        max_shard_bytes: 600.try_into().unwrap(), // one tensor each
        ..keep_last(1)
    };
    write(dir.path(), config, [1]);
    let folder = dir.path().join("step-00000001");
    fs::remove_file(folder.join("model-00002-of-00004.safetensors")).unwrap();
    fs::remove_file(folder.join("model-00003-of-00004.safetensors")).unwrap();
    let error = Weights::open(&folder).unwrap_err().to_string();
    assert!(
        error.contains("2 of the 4 files it lists are missing"),
        "{error}"
    );
    assert!(
        error.contains("model-00002-of-00004.safetensors"),
        "{error}"
    );
}

#[test]
fn index_that_lists_a_tensor_its_file_has_not_is_refused() {
    let (dir, weights) = weights(zeros(&[("a", &[2])]));
    let index = weights.path().join("x.safetensors.index.json");
    let json = json!({"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}});
    fs::write(&index, json.to_string()).unwrap();
    let error = Weights::open(&index).unwrap_err().to_string();
    assert!(
        error.contains("tensor `b` is not in model.safetensors"),
        "{error}"
    );
    drop(dir);
}

#[test]
fn equal_names_and_shapes_pass_in_any_order() {
    let (_dir, weights) = weights(zeros(&[("a", &[2, 3]), ("b", &[])]));
    weights
        .check([("b", &[][..]), ("a", &[2, 3])], &Allow::default())
        .unwrap();
}

#[test]
fn every_difference_is_in_one_error() {
    let (_dir, weights) = weights(zeros(&[
        ("model.embed_tokens.weight", &[100, 8]),
        ("model.layers.0.attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.attn.q_proj.scale", &[1]),
        ("model.norm.weight", &[8]),
    ]));
    let error = weights
        .check(
            [
                ("model.embed_tokens.weight", &[120, 8][..]),
                ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
                ("model.norm.weight", &[8]),
                ("lm_head.weight", &[120, 8]),
            ],
            &Allow::default(),
        )
        .unwrap_err();
    let path = weights.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "\
the weights in {path} do not fit the model: 2 missing, 2 unexpected, 1 misshapen
  missing from the file:
    model.layers.0.self_attn.q_proj.weight [8, 8]  (the file has `model.layers.0.attn.q_proj.weight`)
    lm_head.weight [120, 8]
  not in the model:
    model.layers.0.attn.q_proj.weight [8, 8]
    model.layers.0.attn.q_proj.scale [1]
  of another shape:
    model.embed_tokens.weight model [120, 8], file [100, 8]"
        )
    );
}

#[test]
fn name_that_differs_by_a_prefix_is_the_nearest() {
    let (_dir, weights) = weights(zeros(&[("layers.1.w", &[2]), ("layers.0.w", &[2])]));
    let expected = [("model.layers.0.w", &[2][..]), ("model.layers.1.w", &[2])];
    let error = weights.check(expected, &Allow::default()).unwrap_err();
    assert_eq!(error.missing[0].2.as_deref(), Some("layers.0.w"));
    assert_eq!(error.missing[1].2.as_deref(), Some("layers.1.w"));
}

#[test]
fn long_lists_are_cut_with_a_count() {
    let (_dir, weights) = weights(zeros(&[("a", &[2])]));
    let names: Vec<_> = (0..50).map(|i| format!("layers.{i}.weight")).collect();
    let expected = names.iter().map(|n| (n.as_str(), &[2][..]));
    let error = weights
        .check(expected, &Allow::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("50 missing, 1 unexpected\n"), "{error}");
    assert!(
        error.contains("    layers.19.weight [2]\n    ... and 30 more\n"),
        "{error}"
    );
    assert!(!error.contains("layers.20."), "{error}");
}

#[test]
fn allowed_differences_pass_by_pattern() {
    let (_dir, weights) = weights(zeros(&[
        ("w", &[2]),
        ("model.layers.0.rotary_emb.inv_freq", &[2]),
        ("model.layers.11.rotary_emb.inv_freq", &[2]),
    ]));
    let allow = Allow {
        missing: &["lm_head.weight"],
        unexpected: &["model.layers.*.rotary_emb.inv_freq"],
    };
    weights
        .check([("w", &[2][..]), ("lm_head.weight", &[2])], &allow)
        .unwrap();
    let error = weights
        .check([("lm_head.bias", &[2][..])], &allow)
        .unwrap_err();
    assert_eq!(error.missing.len(), 1);
    assert_eq!(error.unexpected, [("w".to_owned(), vec![2])]);
    // A pattern allows no other shape.
    let error = weights.check(
        [("w", &[3][..])],
        &Allow {
            unexpected: &["*"],
            ..allow
        },
    );
    assert_eq!(error.unwrap_err().misshapen.len(), 1);
}
