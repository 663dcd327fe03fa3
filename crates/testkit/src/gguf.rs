//! GGUF files as llama.cpp's converter makes them from a Hugging Face checkpoint: its names, keys and order of rows.

use std::fs::File;
use std::path::Path;

use candle_core::Tensor;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use serde_json::Value as Json;

/// What the converter says of a model with this `config.json`.
pub fn gguf_metadata(config: &Json) -> Vec<(String, Value)> {
    let architecture = config["model_type"].as_str().unwrap();
    let mut metadata = vec![(
        "general.architecture".to_owned(),
        Value::String(architecture.to_owned()),
    )];
    let (integers, numbers) = if architecture == "gpt2" {
        (GPT2_INTEGERS, GPT2_NUMBERS)
    } else {
        (LLAMA_INTEGERS, LLAMA_NUMBERS)
    };
    for (key, name) in integers {
        let value = Value::U32(config[name].as_u64().unwrap() as u32);
        metadata.push((format!("{architecture}.{key}"), value));
    }
    for (key, name) in numbers {
        let value = Value::F32(config[name].as_f64().unwrap() as f32);
        metadata.push((format!("{architecture}.{key}"), value));
    }
    metadata
}

/// Keys in GGUF and in `config.json`.
type Keys = &'static [(&'static str, &'static str)];

const LLAMA_INTEGERS: Keys = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "head_dim"),
    ("rope.dimension_count", "head_dim"),
];
const LLAMA_NUMBERS: Keys = &[
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("rope.freq_base", "rope_theta"),
];
const GPT2_INTEGERS: Keys = &[
    ("block_count", "n_layer"),
    ("context_length", "n_positions"),
    ("embedding_length", "n_embd"),
    ("feed_forward_length", "n_inner"),
    ("attention.head_count", "n_head"),
];
const GPT2_NUMBERS: Keys = &[("attention.layer_norm_epsilon", "layer_norm_epsilon")];

/// What the converter says of a byte-level BPE `tokenizer.json`, whose pre-tokenizer it calls `pre`. Its added tokens are in
/// its vocabulary.
pub fn gguf_tokenizer(json: &Json, pre: &str) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<_> = vocab.iter().collect();
    tokens.sort_by_key(|(_, id)| id.as_u64());
    let added = json["added_tokens"].as_array().unwrap();
    let is_added = |id: &Json| added.iter().any(|token| token["id"] == *id);
    let types = tokens
        .iter()
        .map(|(_, id)| if is_added(id) { 3 } else { 1 });
    let types = types.map(Value::I32).collect();
    let tokens = tokens.iter().map(|(token, _)| text(token)).collect();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|merge| {
        let part = |i: usize| merge[i].as_str().unwrap();
        text(&format!("{} {}", part(0), part(1)))
    });
    let end = added[0]["id"].as_u64().unwrap() as u32;
    [
        ("model", text("gpt2")),
        ("pre", text(pre)),
        ("tokens", Value::Array(tokens)),
        ("token_type", Value::Array(types)),
        ("merges", Value::Array(merges.collect())),
        ("eos_token_id", Value::U32(end)),
        ("add_bos_token", Value::Bool(false)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into()
}

/// Writes tensors that are given by Hugging Face's names; matrices as `dtype`, the rest in f32.
pub fn write_gguf(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[(String, Tensor)],
    dtype: GgmlDType,
) {
    let value = |key: &str| {
        let found = metadata.iter().find(|(name, _)| name.ends_with(key));
        found.map(|(_, value)| value)
    };
    let is_llama = value("general.architecture")
        .is_some_and(|value| value.to_string().is_ok_and(|name| name == "llama"));
    let count = |key| value(key).map_or(1, |value| value.to_u32().unwrap() as usize);
    let quantized: Vec<(String, QTensor)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let heads = match is_llama {
                true if name.contains("q_proj") => Some(count(".head_count")),
                true if name.contains("k_proj") => Some(count(".head_count_kv")),
                _ => None,
            };
            let tensor = match heads {
                Some(heads) => permuted(tensor, heads),
                // `Conv1D`, turned as all other weights are.
                None if name.contains(".c_") && tensor.rank() == 2 => {
                    tensor.t().unwrap().contiguous().unwrap()
                }
                None => tensor.clone(),
            };
            let dtype = if tensor.rank() > 1 {
                dtype
            } else {
                GgmlDType::F32
            };
            (converted(name), QTensor::quantize(&tensor, dtype).unwrap())
        })
        .collect();
    let metadata: Vec<_> = metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
    let tensors: Vec<_> = quantized.iter().map(|(k, v)| (k.as_str(), v)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// Within each head the two halves are interleaved.
fn permuted(tensor: &Tensor, heads: usize) -> Tensor {
    let dims = tensor.dims().to_vec();
    let split = (heads, 2, dims[0] / heads / 2, ());
    let interleaved = tensor.reshape(split).unwrap().transpose(1, 2).unwrap();
    interleaved.contiguous().unwrap().reshape(dims).unwrap()
}

fn converted(name: &str) -> String {
    let mut name = name.replace("model.layers.", "blk.");
    name = name.replace("transformer.h.", "blk.");
    for (hf, gguf) in [
        ("transformer.wte", "token_embd"),
        ("transformer.wpe", "position_embd"),
        ("transformer.ln_f", "output_norm"),
        ("ln_1", "attn_norm"),
        ("attn.c_attn", "attn_qkv"),
        ("attn.c_proj", "attn_output"),
        ("ln_2", "ffn_norm"),
        ("mlp.c_fc", "ffn_up"),
        ("mlp.c_proj", "ffn_down"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        name = name.replace(hf, gguf);
    }
    name
}

#[test]
fn halves_of_a_head_are_interleaved() {
    let rows: Vec<f32> = (0..8).map(|row| row as f32).collect();
    let rows = Tensor::new(rows, &candle_core::Device::Cpu).unwrap();
    let permuted = permuted(&rows, 2).to_vec1::<f32>().unwrap();
    assert_eq!(permuted, [0., 2., 1., 3., 4., 6., 5., 7.]);
}
