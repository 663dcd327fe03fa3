//! GGUF files as weights: what llama.cpp's converter did is undone, and what is not known is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use candle_core::{Device, Tensor};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tt_checkpoint::{Dtype, Weights};
use tt_nn::{Rope, RopeScaling};
use tt_testkit::{gguf_metadata, write_gguf};

/// Two query heads of 4 share a key/value head of 4.
fn config(model_type: &str, class: &str) -> Json {
    json!({
        "architectures": [class], "attention_bias": false, "head_dim": 4, "hidden_act": "silu",
        "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 128,
        "mlp_bias": false, "model_type": model_type, "num_attention_heads": 2,
        "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 500_000.0, "tie_word_embeddings": true,
        "vocab_size": 16,
    })
}

fn llama() -> Json {
    config("llama", "LlamaForCausalLM")
}

/// Some tensors of such a model, with values that tell rows apart.
fn tensors() -> Vec<(String, Tensor)> {
    [
        ("model.embed_tokens.weight", vec![16, 32]),
        ("model.layers.0.input_layernorm.weight", vec![32]),
        ("model.layers.0.self_attn.q_proj.weight", vec![8, 32]),
        ("model.layers.0.self_attn.q_proj.bias", vec![8]),
        ("model.layers.0.self_attn.k_proj.weight", vec![4, 32]),
        ("model.layers.0.self_attn.v_proj.weight", vec![4, 32]),
        ("model.layers.0.self_attn.o_proj.weight", vec![32, 8]),
        ("model.layers.0.self_attn.q_norm.weight", vec![4]),
        ("model.layers.0.mlp.down_proj.weight", vec![32, 64]),
        ("model.norm.weight", vec![32]),
    ]
    .into_iter()
    .map(|(name, shape)| {
        let tensor = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        (name.to_owned(), tensor)
    })
    .collect()
}

fn written(
    metadata: &[(String, Value)],
    tensors: &[(String, Tensor)],
    dtype: GgmlDType,
) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    write_gguf(&path, metadata, tensors, dtype);
    (dir, path)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn refusal(path: &Path) -> String {
    Weights::open(path).expect_err("refused").to_string()
}

#[test]
fn f32_comes_back_exact_with_hugging_faces_names_and_rows() {
    for (model_type, class) in [
        ("llama", "LlamaForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    ] {
        let (config, tensors) = (config(model_type, class), tensors());
        let (_dir, path) = written(&gguf_metadata(&config), &tensors, GgmlDType::F32);
        let weights = Weights::open(&path).unwrap();
        assert_eq!(weights.names().len(), tensors.len());
        let mut read = Vec::new();
        for (name, tensor) in &tensors {
            assert_eq!(weights.shape(name), Some(tensor.dims()), "{name}");
            assert_eq!(weights.dtype(name), Some(Dtype::F32));
            weights.read_f32(name, &mut read).unwrap();
            assert_eq!(read, values(tensor), "{model_type}: {name}");
        }
        assert_eq!(weights.config(), Some(&config));
    }
}

/// Its feed-forward is not four times as wide, so that a weight turned the wrong way has another shape.
fn gpt2() -> (Json, Vec<(String, Tensor)>) {
    let config = json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "layer_norm_epsilon": 1e-5,
        "model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_inner": 96, "n_layer": 1, "n_positions": 8,
        "tie_word_embeddings": true, "vocab_size": 16,
    });
    let tensors = [
        ("transformer.wte.weight", vec![16, 32]),
        ("transformer.wpe.weight", vec![8, 32]),
        ("transformer.h.0.ln_1.weight", vec![32]),
        ("transformer.h.0.ln_1.bias", vec![32]),
        ("transformer.h.0.attn.c_attn.weight", vec![32, 96]),
        ("transformer.h.0.attn.c_attn.bias", vec![96]),
        ("transformer.h.0.attn.c_proj.weight", vec![32, 32]),
        ("transformer.h.0.attn.c_proj.bias", vec![32]),
        ("transformer.h.0.ln_2.weight", vec![32]),
        ("transformer.h.0.mlp.c_fc.weight", vec![32, 96]),
        ("transformer.h.0.mlp.c_proj.weight", vec![96, 32]),
        ("transformer.h.0.mlp.c_proj.bias", vec![32]),
        ("transformer.ln_f.weight", vec![32]),
        ("transformer.ln_f.bias", vec![32]),
    ];
    let tensors = tensors.into_iter().map(|(name, shape)| {
        let tensor = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        (name.to_owned(), tensor)
    });
    (config, tensors.collect())
}

/// Files of before 2025 hold the embedding a second time, as the head, without which llama.cpp did not load them.
#[test]
fn gpt2_comes_back_exact_with_its_names_and_weights_in_out() {
    let (config, tensors) = gpt2();
    let head = |tensor: Tensor| [&tensors[..], &[("lm_head.weight".to_owned(), tensor)]].concat();
    let copy = head(tensors[0].1.clone());
    let own = head((&tensors[0].1 * 2.0).unwrap());
    for (tensors, is_tied) in [(&tensors, true), (&copy, true), (&own, false)] {
        let (_dir, path) = written(&gguf_metadata(&config), tensors, GgmlDType::F32);
        let weights = Weights::open(&path).unwrap();
        let mut read = Vec::new();
        for (name, tensor) in tensors {
            assert_eq!(weights.shape(name), Some(tensor.dims()), "{name}");
            weights.read_f32(name, &mut read).unwrap();
            assert_eq!(read, values(tensor), "{name}");
        }
        let mut config = config.clone();
        config["tie_word_embeddings"] = is_tied.into();
        assert_eq!(weights.config(), Some(&config));
    }
    let (_dir, path) = written(&gguf_metadata(&config), &tensors[1..], GgmlDType::F32);
    let message = refusal(&path);
    assert!(message.contains("token_embd.weight"), "{message}");
}

#[test]
fn quantised_matrices_come_back_within_half_a_step() {
    let tensors = tensors();
    // As a share of a block's largest value. Q8_0 has 127 steps up to it: half a step, and 127 times the rounding of
    // a step to f16.
    let q8_0 = (0.5 + 127.0 / 2048.0) / 127.0;
    let f16 = 1.0 / 2048.0;
    // Rows of the output projection are shorter than a block.
    let fitting = |(name, _): &&(String, Tensor)| !name.contains("o_proj");
    let tensors: Vec<_> = tensors.iter().filter(fitting).cloned().collect();
    for (dtype, share) in [(GgmlDType::Q8_0, q8_0), (GgmlDType::F16, f16)] {
        let (_dir, path) = written(&gguf_metadata(&llama()), &tensors, dtype);
        let weights = Weights::open(&path).unwrap();
        let (mut read, mut differ) = (Vec::new(), false);
        for (name, tensor) in &tensors {
            weights.read_f32(name, &mut read).unwrap();
            let exact = values(tensor);
            assert_eq!(read.len(), exact.len());
            for (ours, exact) in read.chunks(32).zip(exact.chunks(32)) {
                let allowed = share * exact.iter().fold(0f32, |max, v| max.max(v.abs()));
                for (ours, exact) in ours.iter().zip(exact) {
                    assert!(
                        (ours - exact).abs() <= allowed,
                        "{dtype:?} {name}: {ours}, {exact}"
                    );
                    differ |= ours != exact;
                }
            }
        }
        assert!(differ, "{dtype:?} rounds");
    }
}

#[test]
fn a_head_of_its_own_and_biases_show_in_the_config() {
    let mut tensors = tensors();
    let bias = Tensor::zeros(32, candle_core::DType::F32, &Device::Cpu).unwrap();
    let head = Tensor::zeros((16, 32), candle_core::DType::F32, &Device::Cpu).unwrap();
    tensors.push(("model.layers.0.self_attn.o_proj.bias".into(), bias.clone()));
    tensors.push(("model.layers.0.mlp.down_proj.bias".into(), bias));
    tensors.push(("lm_head.weight".into(), head));
    let (_dir, path) = written(&gguf_metadata(&llama()), &tensors, GgmlDType::F32);
    let weights = Weights::open(&path).unwrap();
    let mut expected = llama();
    expected["attention_bias"] = true.into();
    expected["mlp_bias"] = true.into();
    expected["tie_word_embeddings"] = false.into();
    assert_eq!(weights.config(), Some(&expected));
}

#[test]
fn rope_scaling_is_read_from_metadata_and_from_factors() {
    let text = |text: &str| Value::String(text.to_owned());
    let four = || json!({"rope_type": "linear", "factor": 4.0});
    for (keys, expected) in [
        (
            vec![
                ("scaling.type", text("linear")),
                ("scaling.factor", Value::F32(4.0)),
            ],
            four(),
        ),
        // As llama.cpp has it: linear is what a factor means, also under its name in old files; "none" undoes it.
        (vec![("scaling.factor", Value::F32(4.0))], four()),
        (vec![("scale_linear", Value::F32(4.0))], four()),
        (
            vec![
                ("scaling.type", text("none")),
                ("scaling.factor", Value::F32(4.0)),
            ],
            json!(null),
        ),
        (vec![("scaling.factor", Value::F32(0.0))], json!(null)),
        (vec![("scaling.finetuned", Value::Bool(false))], json!(null)),
    ] {
        let mut metadata = gguf_metadata(&llama());
        let keys = keys.into_iter();
        metadata.extend(keys.map(|(key, value)| (format!("llama.rope.{key}"), value)));
        let (_dir, path) = written(&metadata, &tensors(), GgmlDType::F32);
        let config = Weights::open(&path).unwrap().config().cloned().unwrap();
        assert_eq!(config["rope_scaling"], expected, "{metadata:?}");
    }

    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    let mut metadata = gguf_metadata(&llama());
    for (key, value) in &mut metadata {
        if key.ends_with("_length") && key.contains("attention") || key.ends_with("dimension_count")
        {
            *value = Value::U32(64);
        }
    }
    let rope = Rope::new(64, 500_000.0, 8);
    let factors = rope
        .inv_freq()
        .iter()
        .map(|&freq| freq / scaling.scale(freq));
    let factors = Tensor::new(factors.collect::<Vec<f32>>(), &Device::Cpu).unwrap();
    let only_whole = |(name, _): &&(String, Tensor)| !name.contains("_proj");
    let mut tensors: Vec<_> = tensors().iter().filter(only_whole).cloned().collect();
    tensors.push(("rope_freqs.weight".into(), factors.clone()));
    let (_dir, path) = written(&metadata, &tensors, GgmlDType::F32);
    let weights = Weights::open(&path).unwrap();
    assert!(!weights.contains("rope_freqs.weight"), "no parameter");
    let config = weights.config().cloned().unwrap();
    assert_eq!(
        config["rope_scaling"],
        serde_json::to_value(scaling).unwrap()
    );

    tensors.last_mut().unwrap().1 = (factors * 1.5).unwrap();
    let (_dir, path) = written(&metadata, &tensors, GgmlDType::F32);
    let message = refusal(&path);
    assert!(message.contains("rope_freqs.weight"), "{message}");
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let text = |text: &str| Value::String(text.to_owned());
    for (key, value, names) in [
        (
            "general.architecture",
            Some(text("mamba")),
            ["mamba", "gpt2, llama, qwen2"],
        ),
        (
            "general.architecture",
            None,
            ["general.architecture", "missing"],
        ),
        ("llama.block_count", None, ["llama.block_count", "missing"]),
        (
            "llama.block_count",
            Some(text("two")),
            ["llama.block_count", "whole"],
        ),
        (
            "llama.expert_count",
            Some(Value::U32(8)),
            ["llama.expert_count", "8"],
        ),
        (
            "llama.rope.scaling.type",
            Some(text("yarn")),
            ["rope.scaling.type", "yarn"],
        ),
        (
            "llama.rope.scaling.attn_factor",
            Some(Value::F32(2.0)),
            ["rope.scaling.attn_factor", "not supported"],
        ),
        (
            "llama.rope.dimension_sections",
            Some(Value::U32(2)),
            ["rope.dimension_sections", "not supported"],
        ),
        (
            "llama.rope.dimension_count",
            Some(Value::U32(2)),
            ["rope.dimension_count", "2"],
        ),
        (
            "llama.attention.sliding_window",
            Some(Value::U32(64)),
            ["sliding_window", "64"],
        ),
        (
            "split.count",
            Some(Value::U16(3)),
            ["split.count", "llama-gguf-split"],
        ),
    ] {
        let mut metadata = gguf_metadata(&llama());
        metadata.retain(|(name, _)| name != key);
        metadata.extend(value.map(|value| (key.to_owned(), value)));
        let (_dir, path) = written(&metadata, &tensors(), GgmlDType::F32);
        let message = refusal(&path);
        for name in names {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
    let mut tensors = tensors();
    let gate = Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu).unwrap();
    tensors.push(("blk.0.ffn_gate_inp.weight".into(), gate));
    let (_dir, path) = written(&gguf_metadata(&llama()), &tensors, GgmlDType::F32);
    let message = refusal(&path);
    assert!(message.contains("blk.0.ffn_gate_inp.weight"), "{message}");
}

#[test]
fn a_ggml_type_that_is_not_read_is_named() {
    let (_dir, path) = written(&gguf_metadata(&llama()), &tensors(), GgmlDType::F32);
    let mut bytes = fs::read(&path).unwrap();
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name);
    // After the name: the number of dims, u32; the one dim, u64; the type, u32.
    let at = at.expect("the tensor's entry") + name.len() + 4 + 8;
    bytes[at..at + 4].copy_from_slice(&23u32.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let message = refusal(&path);
    assert!(
        message.contains("IQ4_XS") && message.contains("Q8_0"),
        "{message}"
    );
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let (_dir, path) = written(&gguf_metadata(&llama()), &tensors(), GgmlDType::F32);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let message = refusal(&path);
    assert!(message.contains("truncated"), "{message}");
    fs::write(&path, &bytes[..100]).unwrap();
    let message = refusal(&path);
    assert!(message.contains("not a valid GGUF file"), "{message}");
}
