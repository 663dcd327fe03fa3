//! Configs of the decoders: what a `config.json` says, what is refused, and what is written.

use serde_json::{Value, json};
use tt_models::{
    Architecture, Decoder, Error, LlamaConfig, Model, ModelConfig, Qwen2Config, Qwen3Config,
};

fn config(extra: Value) -> Value {
    let mut config = json!({
        "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "sliding_window": 4,
    });
    let (Value::Object(all), Value::Object(extra)) = (&mut config, extra) else {
        unreachable!("both are objects")
    };
    all.extend(extra);
    config
}

#[test]
fn layer_types_say_where_windows_begin() {
    let types = json!({
        "use_sliding_window": true, "max_window_layers": 0,
        "layer_types": ["full_attention", "sliding_attention"],
    });
    let read = Qwen2Config::from_hf(&config(types)).unwrap();
    assert_eq!(read.windows.max_window_layers, 1);
    let windows = [0, 1].map(|layer| read.block(layer).window);
    assert_eq!(windows, [None, Some(4)]);
}

#[test]
fn what_would_change_the_numbers_unseen_is_refused() {
    let refused = [
        (
            json!({"layer_types": ["sliding_attention", "full_attention"]}),
            "layer_types",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types",
        ),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"attention_dropout": 0.1}), "attention_dropout"),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0}}),
            "rope_scaling",
        ),
        (json!({"vocab_size": "many"}), "vocab_size"),
        (json!({"model_type": "llama"}), "model_type"),
    ];
    for (extra, key) in refused {
        let message = Qwen2Config::from_hf(&config(extra)).unwrap_err();
        assert!(message.to_string().contains(key), "{message}");
    }
}

#[test]
fn sizes_that_do_not_fit_name_their_key() {
    for (extra, expected) in [
        (json!({"num_attention_heads": 3}), "num_attention_heads"),
        (json!({"num_attention_heads": 8}), "num_attention_heads"), // heads of one
        (json!({"head_dim": 3}), "head_dim"),
        (json!({"num_key_value_heads": 4}), "num_key_value_heads"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.5}}),
            "rope_scaling",
        ),
        (
            json!({"use_sliding_window": true, "sliding_window": 0}),
            "sliding_window",
        ),
    ] {
        let fits = Qwen2Config::from_hf(&config(extra)).unwrap();
        let Err(Error::Config { key, .. }) = Decoder::new(fits) else {
            panic!("{expected} is wrong")
        };
        assert_eq!(key, expected);
    }
}

#[test]
fn a_head_size_of_its_own_need_not_divide_the_width() {
    let wide = json!({"head_dim": 6, "num_attention_heads": 3, "num_key_value_heads": 1});
    let model = Decoder::new(LlamaConfig::from_hf(&config(wide)).unwrap()).unwrap();
    assert_eq!(
        shape(&model, "model.layers.1.self_attn.q_proj.weight"),
        [18, 8]
    );
    assert_eq!(
        shape(&model, "model.layers.1.self_attn.k_proj.weight"),
        [6, 8]
    );
}

#[test]
fn biases_are_where_the_config_says() {
    let biased = |model: &dyn Model| -> Vec<String> {
        let params = model.params().into_iter();
        params
            .filter_map(|spec| {
                let name = spec.path.strip_prefix("model.layers.0.")?;
                Some(name.strip_suffix(".bias")?.to_owned())
            })
            .collect()
    };
    let [q, k, v, o] = ["q", "k", "v", "o"].map(|name| format!("self_attn.{name}_proj"));
    let qwen2 = Decoder::new(Qwen2Config::from_hf(&config(json!({}))).unwrap()).unwrap();
    assert_eq!(biased(&qwen2), [&*q, &*k, &*v]);

    let all = json!({"attention_bias": true, "mlp_bias": true, "head_dim": 4});
    let llama = Decoder::new(LlamaConfig::from_hf(&config(all.clone())).unwrap()).unwrap();
    let mlp = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    assert_eq!(biased(&llama), [&[&*q, &*k, &*v, &*o], &mlp[..]].concat());
    let qwen3 = Decoder::new(Qwen3Config::from_hf(&config(all)).unwrap()).unwrap();
    assert_eq!(biased(&qwen3), [&*q, &*k, &*v, &*o]);
}

#[test]
fn the_config_json_that_is_written_reads_back_equal() {
    let llama3 = json!({
        "rope_theta": 5e5, "tie_word_embeddings": true, "attention_bias": true, "head_dim": 4,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    });
    reads_back::<LlamaConfig>(llama3, "llama");
    let windows = json!({"use_sliding_window": true, "max_window_layers": 1, "head_dim": 4});
    reads_back::<Qwen2Config>(windows.clone(), "qwen2");
    reads_back::<Qwen3Config>(windows, "qwen3");
}

fn reads_back<C: Architecture + PartialEq + std::fmt::Debug>(extra: Value, model_type: &str) {
    let read = C::from_hf(&config(extra)).unwrap();
    let written = Decoder::new(read.clone()).unwrap().hf_config();
    assert_eq!(written["model_type"], model_type);
    assert_eq!(written.get("hidden_dropout"), None);
    assert_eq!(C::from_hf(&written).unwrap(), read);
}

fn shape(model: &dyn Model, path: &str) -> Vec<usize> {
    let mut params = model.params().into_iter();
    let found = params.find(|spec| spec.path == path);
    found.expect("a parameter").shape
}
